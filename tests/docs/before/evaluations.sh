. "$ROOT/tests/docs/shared/greet.sh"
bench eval run tasks --agent oracle --name first
cp -r "$ROOT/examples/packages/haggle-arena" .
