mkdir -p harbor-tasks/hello/tests harbor-tasks/hello/solution harbor-tasks/hello/environment
cat > harbor-tasks/hello/task.toml <<'END'
schema_version = "1.3"
[task]
name = "acme/hello"
END
echo 'Write hello into /app/answer.txt.' > harbor-tasks/hello/instruction.md
echo 'FROM ubuntu:24.04' > harbor-tasks/hello/environment/Dockerfile
cat > harbor-tasks/hello/tests/test.sh <<'END'
#!/bin/bash
if grep -qx hello /app/answer.txt; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
END
echo 'echo hello > /app/answer.txt' > harbor-tasks/hello/solution/solve.sh

mkdir -p their-tasks/hello/tests
cat > their-tasks/hello/task.yaml <<'END'
instruction: Write hello into answer.txt.
parser_name: pytest
END
printf 'FROM ubuntu:24.04\nWORKDIR /app\n' > their-tasks/hello/Dockerfile
echo 'echo hello > answer.txt' > their-tasks/hello/solution.sh
echo 'pytest -rA $TEST_DIR/test_outputs.py' > their-tasks/hello/run-tests.sh
echo 'def test_it(): assert open("/app/answer.txt").read() == "hello\n"' > their-tasks/hello/tests/test_outputs.py
