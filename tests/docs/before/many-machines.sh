. "$ROOT/tests/docs/shared/greet.sh"
for name in count sort; do
    cp -r tasks/greet "tasks/$name"
    sed -i "s/demo.greet/demo\/$name/" "tasks/$name/task.md"
done
