mkdir -p examples/packages
cp -r "$ROOT/examples/packages/haggle-arena" examples/packages/
