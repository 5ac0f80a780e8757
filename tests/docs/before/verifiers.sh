. "$ROOT/tests/docs/shared/greet.sh"
mkdir work
echo hello > work/greeting.txt
