#!/bin/sh
set -eu
cat > /app/decisions.md <<'END'
- The old importer is switched off (Chi, 1 March)
- All customers are written to (Ben, 15 February)
END
