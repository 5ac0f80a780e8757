#!/bin/sh
set -eu
cat > /app/count.sh <<'END'
#!/bin/sh
tr -cs 'A-Za-z' '\n' | tr 'A-Z' 'a-z' | grep . | sort | uniq -c | sort -k1,1nr -k2 | head -3 | awk '{print $1, $2}'
END
chmod +x /app/count.sh
