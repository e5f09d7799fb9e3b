# What start, test, lock and bench share: a Python that fits, and the environment in .venv. Sourced, never run.
# shellcheck shell=bash

root="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)"
venv="$root/.venv"

say() {
  printf '%s\n' "$*" >&2
}

fail() {
  say "$(basename -- "$0"): $*"
  exit 1
}

# Prints the first Python that is new enough and can make environments; ends with a sentence if there is none.
find_python() {
  local candidate old=""
  for candidate in ${PYTHON:+"$PYTHON"} python3 python3.1{5,4,3,2,1} python; do
    command -v "$candidate" >/dev/null 2>&1 || continue
    if ! "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
      old="$candidate"
    elif ! "$candidate" -c 'import ensurepip, venv' >/dev/null 2>&1; then
      fail "$candidate cannot make environments: its venv module is missing (on Debian and Ubuntu: apt install python3-venv)."
    else
      printf '%s\n' "$candidate"
      return
    fi
  done
  [[ -z "$old" ]] || fail "Python 3.11 or newer is needed, and $old is $("$old" -V 2>&1 || true). Install a newer one, or name one with PYTHON=/path/to/python3."
  fail "no python3 on PATH. Install Python 3.11 or newer, or name one with PYTHON=/path/to/python3."
}

# A number that changes with whatever the environment is made from: the locks, the metadata, the place itself.
environment_key() {
  { cat "$root"/requirements/{runtime,codex,test,dev}.txt "$root/pyproject.toml"; printf '%s\n' "$venv"; } | cksum | tr -d ' '
}

# merge_locks LOCK...: the fewest locks with all packages of these. Everything of runtime is in codex, of all others in dev.
merge_locks() {
  local merged=""
  case " $* " in
    *" dev "*) merged="dev" ;;
    *" codex "*) merged="codex" ;;
    *" runtime "*) merged="runtime" ;;
  esac
  case "$merged $* " in
    "dev "*) ;;
    *" test "*) merged="${merged:+$merged }test" ;;
  esac
  printf '%s\n' "$merged"
}

pip_in_venv() {
  PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_USER=0 PIP_REQUIRE_VIRTUALENV=0 "$venv/bin/python" -m pip "$@"
}

# make_environment LOCK: .venv with at least what requirements/LOCK.txt pins, and this package, editable.
# Nothing is done when the last one still fits; what an earlier call has added stays.
make_environment() {
  local wanted stamp="$venv/.codex-proxy" key has_key="" has="" files
  key="$(environment_key)"
  if [[ -f "$stamp" ]]; then
    read -r has_key has <"$stamp" || true
  fi
  wanted="$(merge_locks "$has" "$1")"
  files="$(locks_of "$wanted")"
  if [[ "$has_key" == "$key" && "$has" == "$wanted" ]] && "$venv/bin/python" -c '' 2>/dev/null; then
    return
  fi
  make_venv
  say "Installing the locked packages of $files (the first time takes a minute) ..."
  with_ticks install_locked "$wanted" ||
    fail "pip could not install $files: the lines above say why. Is there a network? Start again when it is mended."
  say "Installing this package ..."
  with_ticks pip_in_venv install --quiet --no-deps --editable "$root" ||
    fail "pip could not install this package: the lines above say why."
  printf '%s %s\n' "$key" "$wanted" >"$stamp"
}

# The files of locks, as a sentence has them.
locks_of() {
  local lock files=""
  for lock in $1; do
    files="${files:+$files and }requirements/$lock.txt"
  done
  printf '%s\n' "$files"
}

install_locked() {
  local lock line requirements=() count=0
  for lock in $1; do
    requirements+=(-r "$root/requirements/$lock.txt")
    while IFS= read -r line; do
      count=$((count + 1))
    done <"$root/requirements/$lock.txt"
  done
  pip_in_venv install --progress-bar off "${requirements[@]}" | show_progress "$count"
}

make_venv() {
  if pip_in_venv --version >/dev/null 2>&1 &&
    "$venv/bin/python" -c 'import os, sys; sys.exit(sys.version_info < (3, 11) or not os.path.samefile(sys.prefix, sys.argv[1]))' "$venv"; then
    return
  fi
  local python
  python="$(find_python)" || exit 1
  say "Making the environment $venv with $("$python" -V) ..."
  with_ticks "$python" -m venv --clear "$venv" || fail "$python -m venv failed: the lines above say why."
}

# show_progress COUNT: of all that pip tells, how many of its packages it has come to.
show_progress() {
  local line at=0
  while IFS= read -r line; do
    case "$line" in
      Collecting\ *)
        line="${line#Collecting }"
        at=$((at + 1))
        say_in_place "  $at of $1: ${line%% *}"
        ;;
      Downloading\ *MB\)*) say_in_place "  $at of $1: ${line#*Downloading }" ;;
      Installing\ collected*) say_in_place "  $at of $1: installing ..." ;;
    esac
  done
}

# A line that the next one replaces where a person looks on, else one more line.
say_in_place() {
  if [[ -t 2 ]]; then
    printf '\r\033[K%s' "$*" >&2
  else
    say "$*"
  fi
}

# Runs a command, and says every few seconds that it is at work: venv and pip may be silent for half a minute.
with_ticks() {
  local ticker status=0
  tick &
  ticker=$!
  "$@" || status=$?
  kill "$ticker" 2>/dev/null || :
  wait "$ticker" 2>/dev/null || :
  [[ ! -t 2 ]] || say_in_place ""
  return "$status"
}

tick() {
  local passed=0
  trap 'kill "$(jobs -p)" 2>/dev/null || :; exit 0' TERM
  while :; do
    sleep 5 &
    wait $! || :
    kill -0 $$ 2>/dev/null || exit 0 # Ctrl-C has ended the script, but not this
    passed=$((passed + 5))
    say_in_place "  ... $passed s"
  done
}
