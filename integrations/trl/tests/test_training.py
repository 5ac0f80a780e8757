"""With TRL itself: its adapter of ORS servers, and a GRPO step of a tiny model that is made on the spot, on a CPU."""

import os
import tempfile
import unittest
import warnings
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_chat_template
from trl.experimental.openreward import OpenRewardSpec

from benchcube_trl import PackageEnvironment, ServedPackages

URL, TOKEN = os.environ["SERVED_URL"], os.environ["SERVED_TOKEN"]


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Bytes, and the marks of the chat template."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: place for place, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    made.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    made.chat_template = qwen3_chat_template
    return made


def tiny_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, head_dim=8, max_position_embeddings=8192,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    return Qwen3ForCausalLM(config)


class TrainingTests(unittest.TestCase):
    def test_a_step_of_grpo_learns_from_scored_work_and_leaves_out_the_rest(self) -> None:
        served = ServedPackages(URL, token=TOKEN, split="test")
        self.addCleanup(served.close)
        rewards: list[float | None] = []

        class Watched(PackageEnvironment):
            def get_reward(self) -> float | None:
                rewards.append(super().get_reward())
                return rewards[-1]

        tokenizer = tiny_tokenizer()
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer = GRPOTrainer(
                model=tiny_model(tokenizer),
                processing_class=tokenizer,
                train_dataset=served.dataset(),
                environment_factory=lambda: Watched(served.client),
                args=GRPOConfig(
                    output_dir=folder,
                    max_steps=1,
                    num_generations=2,
                    per_device_train_batch_size=4,  # both tasks of the split, twice
                    max_completion_length=8,
                    max_tool_calling_iterations=1,
                    report_to="none",
                    use_cpu=True,
                    save_strategy="no",
                    logging_steps=1,
                    bf16=False,
                ),
            )
            trainer.train()
            self.assertEqual(trainer.state.global_step, 1)
            self.assertEqual([*Path(folder).glob("checkpoint-*")], [])
        self.assertEqual(len(rewards), 4)
        self.assertEqual({*rewards}, {0.0, None})
        self.assertEqual(trainer.state.log_history[0]["reward"], 0.0)

    def test_the_adapter_of_trl_for_ors_servers_plays_packages(self) -> None:
        os.environ |= {"OPENREWARD_SESSION_URL": URL, "OPENREWARD_API_URL": URL}  # else subdomains of the address
        spec = OpenRewardSpec(URL, split="test", api_key=TOKEN, env_name="set")
        rows = spec.train_dataset.to_list()
        by_id = {row["id"]: row["task_index"] for row in rows}
        self.assertIn("set/plain", by_id)
        environments = [spec.environment_factory() for _ in range(2)]
        for environment, name in zip(environments, ("set/plain", "set/crash"), strict=True):
            self.assertIn("/app/answer.txt", environment.reset(task_index=by_id[name]))
            environment.bash(command="echo done > /app/answer.txt")
            environment.submit()
            environment._close()
        self.assertEqual(spec.reward_funcs(environments=environments), [1.0, None])


if __name__ == "__main__":
    unittest.main()
