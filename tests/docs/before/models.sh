. "$ROOT/tests/docs/shared/greet.sh"
