"""The issues: a repository each, the patch that repairs it, and the tests that judge a repair."""

from typing import Any

ISSUES: dict[str, dict[str, Any]] = {
    "slugs-1": {
        "problem_statement": "slug('Crème  brûlée') returns 'Crème--brûlée' instead of 'crème-brûlée'.",
        "files": {
            "slugs.py": "def slug(text):\n    return text.replace(' ', '-')\n",
            "test_old.py": (
                "import unittest\nfrom slugs import slug\n\n\nclass Old(unittest.TestCase):\n"
                "    def test_plain(self):\n        self.assertEqual(slug('a b'), 'a-b')\n"
            ),
        },
        "patch": (
            "--- a/slugs.py\n+++ b/slugs.py\n@@ -1,2 +1,2 @@\n def slug(text):\n"
            "-    return text.replace(' ', '-')\n+    return '-'.join(text.lower().split())\n"
        ),
        "tests": {
            "test_hidden.py": (
                "import unittest\nfrom slugs import slug\n\n\nclass Hidden(unittest.TestCase):\n"
                "    def test_single_hyphens(self):\n        self.assertEqual(slug('A  b c'), 'a-b-c')\n\n"
                "    def test_accents_stay(self):\n        self.assertEqual(slug('Crème  brûlée'), 'crème-brûlée')\n"
            )
        },
        "fail_to_pass": ["test_hidden.Hidden.test_single_hyphens", "test_hidden.Hidden.test_accents_stay"],
        "pass_to_pass": ["test_old.Old.test_plain"],
    },
    "ranges-7": {
        "problem_statement": "chunks([1, 2, 3], 2) loses the last element. Every element must be in a chunk.",
        "files": {
            "ranges.py": (
                "def chunks(items, size):\n"
                "    return [items[i * size:(i + 1) * size] for i in range(len(items) // size)]\n"
            ),
            "test_old.py": (
                "import unittest\nfrom ranges import chunks\n\n\nclass Old(unittest.TestCase):\n"
                "    def test_even(self):\n        self.assertEqual(chunks([1, 2], 1), [[1], [2]])\n"
            ),
        },
        "patch": (
            "--- a/ranges.py\n+++ b/ranges.py\n@@ -1,2 +1,2 @@\n def chunks(items, size):\n"
            "-    return [items[i * size:(i + 1) * size] for i in range(len(items) // size)]\n"
            "+    return [items[i:i + size] for i in range(0, len(items), size)]\n"
        ),
        "tests": {
            "test_hidden.py": (
                "import unittest\nfrom ranges import chunks\n\n\nclass Hidden(unittest.TestCase):\n"
                "    def test_rest(self):\n        self.assertEqual(chunks([1, 2, 3], 2), [[1, 2], [3]])\n"
            )
        },
        "fail_to_pass": ["test_hidden.Hidden.test_rest"],
        "pass_to_pass": ["test_old.Old.test_even"],
    },
}
