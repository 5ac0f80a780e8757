. "$ROOT/tests/docs/shared/greet.sh"
mkdir -p examples/packages
cp -r "$ROOT/examples/packages/two-step-release" examples/packages/
