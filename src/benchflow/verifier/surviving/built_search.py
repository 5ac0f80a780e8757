"""The shell scripts that search an image for what it was built with: they need nothing but its shell and usual tools.

Their variables (`WORKDIR`, `STARTS`, …) come from `shared_box`, which also reads the records that they print.
"""

from __future__ import annotations

from typing import Final

SEARCH: Final = r"""
node() {
  [ -x "$1" ] && [ -f "$1" ] && printf 'node %s\0' "$(readlink -f "$1")"
}
stdlib() {
  [ -f "$1/encodings/aliases.py" ] || return 0
  place=$(cd -P "$1/encodings" && pwd -P)
  case $place in */encodings) place=${place%/encodings};; *) place=$(cd -P "$1" && pwd -P);; esac
  printf 'stdlib %s\0' "$place"
}
setting() {
  case $SETTINGS in *":${1##*/}:"*) [ ! -s "$1" ] || printf '%s\0' "$1" >&3;; esac
}
sites() {
  for site in "$1"/*-packages; do
    [ -d "$site" ] || continue
    find "$site" -maxdepth 1 -type l -print0 >&4
    for lines in "$site"/*.pth; do
      [ ! -f "$lines" ] || while IFS= read -r line || [ -n "$line" ]; do
        case $line in
          ""|"#"*|"import "*|"import	"*) ;;
          *) root=$(cd -P "$site" && cd -P "$line" && pwd -P) && printf 'project %s\0' "$root";;
        esac
      done <"$lines"
    done 2>/dev/null
    for finder in "$site"/__editable__*_finder.py; do
      [ -f "$finder" ] || continue
      grep -E '^(MAPPING|NAMESPACES)' "$finder" | grep -oE "'/[^']+'" | while IFS= read -r root; do
        root=${root#?}
        printf 'project %s\0' "${root%?}"
      done
    done
  done
}
look() {
  [ -d "$1" ] || { setting "$1"; return 0; }
  found=
  node "$1/bin/node"
  case $1 in */node_modules) found=yes;; esac
  [ -d "$1/conda-meta" ] && found=yes
  [ -e "$1/bin/python3" ] && found=yes
  if [ -f "$1/pyvenv.cfg" ]; then
    found=yes
    while IFS= read -r line || [ -n "$line" ]; do
      case $line in "home = "*)
        home=${line#home = }
        printf '%s\0' "$home"
        for place in "${home%/bin}"/lib*/py*3*; do stdlib "$place"; done;;
      esac
    done <"$1/pyvenv.cfg"
  fi
  if [ "$found" ]; then
    printf '%s\0' "$1"
    for place in "$1"/lib*/py*3*; do sites "$place"; stdlib "$place"; done
    case $WORKDIR/ in "$1"/*) ;; *) return 0;; esac
  fi
  [ -L "$1" ] || walk "$1"
}
walk() {
  for entry in "$1"/* "$1"/.[!.]*; do
    case $SKIPPED in *":$entry:"*) ;; *) look "$entry";; esac
  done
}
mkdir -p /tmp
list=/tmp/settings.$$
exec 3>"$list" 4>"$list.links"
walk ""
look "$WORKDIR"
xargs -0 sha256sum <"$list" 2>/dev/null | while read -r digest name; do printf 'setting %s\0' "${digest#\\}"; done
[ ! -e "$WORKDIR/pyproject.toml" ] || printf 'project\0'
uv() {
  for file in "$1/uv.toml" "$1/.python-version" "$1/.python-versions"; do
    [ ! -e "$file" ] || printf 'uv\0'
  done
  if [ -e "$1/pyproject.toml" ]; then
    grep -q uv "$1/pyproject.toml" && lacks=0 || lacks=$?
    [ "$lacks" -eq 1 ] || printf 'uv\0'
  fi
}
uv "$WORKDIR"
uv /etc/uv
for folder in /root /home/*; do uv "$folder/.config/uv"; done
find "$WORKDIR" -maxdepth 4 -type f -size -512 \( -iname '*makefile*' -o -name '*.mk' \) \
  -exec printf 'makefile ' \; -exec cat {} \; -exec printf '\0' \; 2>/dev/null | head -c 4000000
for folder in $GEMS; do
  [ -f "$folder/rubygems.rb" ] && [ ! -e "$folder/$START_OF_GEMS" ] && printf 'gems %s\0' "$folder"
done
printf 'accounts %s\0' "$(cat /etc/passwd 2>/dev/null)"
IFS=:
set -f
for pattern in $STDLIBS; do
  set +f
  for place in $pattern; do sites "$place"; stdlib "$place"; done
done
set +f
for pattern in $NODES; do
  for place in $pattern; do node "$place"; done
done
for place in /root/.local/lib/py*3* /home/*/.local/lib/py*3*; do sites "$place"; done
for folder in $PATH; do node "$folder/node"; node "$folder/nodejs"; done
for folder in $FOLDERS:$PATH; do
  for file in $folder/*; do printf 'file %s\0' "${file##*/}"; done
done
for folder in $LINKING:$PATH; do find $folder -maxdepth 1 -type l -print0 2>/dev/null; done >&4
for folder in $PATH; do
  [ ! -d "$folder" ] || printf 'folder %s\0' "$(cd -P "$folder" && pwd -P)"
done
for file in $STARTS; do
  [ ! -e "$file" ] || printf 'start %s\0' "$(readlink -f "$file")"
done
unset IFS
readlink -f / / >/dev/null 2>&1 && several= || several="-n 1"
OUTSIDE=$(xargs -0 $several readlink -f <"$list.links" 2>/dev/null | grep -vE "$INSIDE")
export OUTSIDE
[ -z "$OUTSIDE" ] || xargs -0 sh -c "$FOLLOW" sh <"$list.links"
"""
"""Prints roots of tools and the home of virtual environments (a link to such a root is one too), standard libraries of
Python, digests of settings, and the names of programs and shared libraries."""
FOLLOW: Final = r"""
IFS='
'
set -f
for last in $OUTSIDE; do
  [ -d "$last" ] && word=project || word=linked
  printf '%s %s\0' $word "$last"
  for link do
    [ "$link" -ef "$last" ] || continue
    count=0
    while [ -L "$link" ] && [ $count -lt 20 ]; do
      target=$(readlink "$link")
      case $target in /*) link=$target;; *) link=${link%/*}/$target;; esac
      printf '%s %s\0' $word "$link"
      count=$((count + 1))
    done
  done
done
"""
"""Prints all places through which links of the system lead to something outside it."""
