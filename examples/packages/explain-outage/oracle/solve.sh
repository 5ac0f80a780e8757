#!/bin/sh
set -eu
cat > /app/explanation.md <<'END'
The certificate expired at 10:02 and was renewed at 10:19; the backup has nothing to do with it.

    10:02 error handshake failed: certificate expired
    10:19 info  certificate renewed
END
