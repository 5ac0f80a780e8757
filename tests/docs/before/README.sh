cp -r "$ROOT/examples" .
