mkdir -p logs/verifier
echo '{"metrics": {"a": 1, "b": 0}}' > logs/verifier/reward.json
