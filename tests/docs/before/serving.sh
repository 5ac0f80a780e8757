. "$ROOT/tests/docs/shared/greet.sh"
mkdir -p arenas
cp -r "$ROOT/examples/packages/haggle-arena" arenas/
