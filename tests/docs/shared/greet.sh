# The package of the quickstart.
mkdir -p tasks/greet/verifier tasks/greet/oracle
cat > tasks/greet/task.md <<'END'
---
schema_version: "1.3"
task:
  name: demo/greet
environment:
  network_mode: no-network
---
Write `hello` into `/app/greeting.txt`.
END
cat > tasks/greet/verifier/test.sh <<'END'
#!/bin/sh
grep -qx hello /app/greeting.txt && reward=1 || reward=0
echo "$reward" > /logs/verifier/reward.txt
END
echo 'echo hello > /app/greeting.txt' > tasks/greet/oracle/solve.sh
