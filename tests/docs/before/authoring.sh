. "$ROOT/tests/docs/shared/greet.sh"
for number in $(seq 10 49); do
    cp -r tasks/greet tasks/task-$number
    sed -i "s/demo.greet/demo\/task-$number/" tasks/task-$number/task.md
    if [ $number -ge 38 ]; then sed -i 's/^environment:/&\n  cpuz: 2/' tasks/task-$number/task.md; fi
    if [ $number -ge 44 ]; then sed -i 's/^environment:/&\n  gpu: 1/' tasks/task-$number/task.md; fi
done
rm -r tasks/greet
