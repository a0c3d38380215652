#!/usr/bin/env bash
# Makes this checkout ready to run: system packages, .venv (the project) and .agent-env (what
# agents find in their sandbox). Safe to repeat; a finished set-up is recognised by its stamps.
#
# FDE_RAY_PYTHON=PATH    the Python (3.11 to 3.14) to build .venv with
# FDE_RAY_SKIP_APT=1     install no system package, go on without the missing ones
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly MINORS="14 13 12 11"
readonly VENV=.venv AGENT_ENV=.agent-env

say() { printf 'setup: %s\n' "$*"; }
fail() {
    printf 'setup: error: %s\n' "$*" >&2
    exit 1
}

step() { # SENTENCE COMMAND...
    local sentence=$1 began=$SECONDS
    shift
    say "$sentence ..."
    "$@" || fail "that step failed (command: $*)"
    say "  done in $((SECONDS - began)) s"
}

is_supported() { # PYTHON: CPython of a supported version
    "$1" -I -c 'import sys
sys.exit(not ((3, 11) <= sys.version_info < (3, 15) and sys.implementation.name == "cpython"))' \
        >/dev/null 2>&1
}

has_venv() { "$1" -I -c 'import ensurepip, venv' >/dev/null 2>&1; }

real_python() { "$1" -I -c 'import os, sys; print(os.path.realpath(sys.executable))'; }

# --- system packages ---------------------------------------------------------------------------

has_postgresql() { # Debian keeps the server's programs out of PATH
    command -v initdb >/dev/null || compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null
}

missing_packages() {
    command -v bwrap >/dev/null || echo bubblewrap
    command -v rg >/dev/null || echo ripgrep
    [ -e /etc/ssl/certs/ca-certificates.crt ] || echo ca-certificates
    has_postgresql || echo postgresql # for the tests of the run store
    find_python >/dev/null || printf '%s\n' python3 python3-venv
}

can_work_without() { # PACKAGE
    case $1 in
        bubblewrap) command -v runsc >/dev/null ;;
        python3 | python3-venv) return 1 ;;
        *) return 0 ;;
    esac
}

apt_install() { # PACKAGES...
    local as_root=()
    [ "$(id -u)" = 0 ] || as_root=(sudo -n)
    local install=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive
        apt-get install -y -qq --no-install-recommends "$@")
    "${install[@]}" >/dev/null 2>&1 && return
    say "  refreshing the package lists first (apt-get update)"
    "${as_root[@]}" apt-get update -qq && "${install[@]}" >/dev/null
}

may_use_apt() {
    [ -z "${FDE_RAY_SKIP_APT:-}" ] && command -v apt-get >/dev/null &&
        { [ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null; }
}

install_system_packages() {
    local packages package
    mapfile -t packages < <(missing_packages)
    [ ${#packages[@]} -gt 0 ] || return 0
    if may_use_apt; then
        say "installing system packages: ${packages[*]} ..."
        apt_install "${packages[@]}" || say "  apt-get could not install them all"
        mapfile -t packages < <(missing_packages)
    fi
    local needed=()
    for package in "${packages[@]}"; do
        can_work_without "$package" || needed+=("$package")
    done
    [ ${#packages[@]} -gt 0 ] || return 0
    local command="sudo apt-get update && sudo apt-get install -y ${packages[*]}"
    if [ ${#needed[@]} -eq 0 ] || [ -n "${FDE_RAY_SKIP_APT:-}" ]; then
        say "going on without ${packages[*]}; to add: $command"
    else
        fail "cannot go on without ${needed[*]}. Run:
           $command
       then repeat this command (FDE_RAY_SKIP_APT=1 goes on all the same)"
    fi
}

# --- Python ------------------------------------------------------------------------------------

find_python() { # prints the interpreter for .venv: the system's first, then what PATH offers
    local candidate minor candidates=()
    [ -z "${FDE_RAY_PYTHON:-}" ] || candidates+=("$FDE_RAY_PYTHON")
    candidates+=(/usr/bin/python3)
    for minor in $MINORS; do candidates+=("/usr/bin/python3.$minor"); done
    candidates+=(python3)
    for minor in $MINORS; do candidates+=("python3.$minor"); done
    for candidate in "${candidates[@]}"; do
        if is_supported "$candidate" && has_venv "$candidate"; then
            real_python "$candidate"
            return
        fi
    done
    return 1
}

# uv reads neither pip's settings nor, by default, the system's certificates; a machine that sets
# its index or its certificate authority only there should still work.
inherit_pip_settings() { # PYTHON_WITH_PIP
    local settings value
    settings=$("$1" -m pip config list 2>/dev/null || true)
    pip_setting() { sed -nE "s/^(global|:env:|install)\\.$1='(.*)'\$/\\2/p" <<<"$settings" | tail -n 1; }
    [ ! -e /etc/ssl/certs/ca-certificates.crt ] || export UV_SYSTEM_CERTS=${UV_SYSTEM_CERTS:-1}
    if [ -z "${SSL_CERT_FILE:-}" ]; then
        value=$(pip_setting cert)
        [ ! -f "$value" ] || export SSL_CERT_FILE=$value
    fi
    if [ -z "${UV_DEFAULT_INDEX:-}${UV_INDEX_URL:-}" ]; then
        value=$(pip_setting index-url)
        [ -z "$value" ] || export UV_DEFAULT_INDEX=$value
    fi
    if [ -z "${UV_INDEX:-}${UV_EXTRA_INDEX_URL:-}" ]; then
        value=$(pip_setting extra-index-url)
        [ -z "$value" ] || export UV_INDEX=$value
    fi
}

stamp_of() { # PYTHON FILES...: changes whenever the environment would come out different
    local python=$1
    shift
    { pwd -P; echo "$python"; cat "$@"; } | sha256sum | cut -d' ' -f1
}

is_fresh() { # ENVIRONMENT STAMP
    [ "$(cat "$1/.setup-stamp" 2>/dev/null)" = "$2" ] && "$1/bin/python" -I -c '' 2>/dev/null
}

make_environment() { # ENVIRONMENT PYTHON: an empty one unless a sound one is there already
    if [ "$("$1/bin/python" -I -c 'import os, sys; print(os.path.realpath(sys.executable), sys.prefix)' \
        2>/dev/null)" != "$2 $(pwd -P)/$1" ]; then
        rm -rf "$1"
        step "creating $1 with $2" "$2" -m venv "$1"
    fi
    rm -f "$1/.setup-stamp"
}

set_up_venv() { # PYTHON
    local stamp
    stamp=$(stamp_of "$1" locks/bootstrap.txt locks/dev.txt pyproject.toml scripts/setup.sh)
    ! is_fresh "$VENV" "$stamp" || return 0
    make_environment "$VENV" "$1"
    inherit_pip_settings "$VENV/bin/python"
    step "installing uv into $VENV" "$VENV/bin/python" -m pip install --quiet \
        --disable-pip-version-check --no-deps --require-hashes -r locks/bootstrap.txt
    step "installing $(grep -c '^[a-z]' locks/dev.txt) locked packages (about 1.2 GB, one to three minutes)" \
        "$VENV/bin/uv" pip sync --quiet --python "$VENV/bin/python" --require-hashes locks/dev.txt
    step "installing this project into $VENV" "$VENV/bin/uv" pip install --quiet \
        --python "$VENV/bin/python" --no-deps --no-build-isolation --editable .
    echo "$stamp" >"$VENV/.setup-stamp"
}

agent_python() { # PYTHON_OF_VENV: the sandbox shows /usr only, so an interpreter from there is best
    local candidate
    for candidate in /usr/bin/python3 /usr/bin/python3.{14,13,12,11}; do
        if is_supported "$candidate"; then
            real_python "$candidate"
            return
        fi
    done
    echo "$1"
}

set_up_agent_env() { # PYTHON_OF_VENV
    local python stamp
    python=$(agent_python "$1")
    stamp=$(stamp_of "$python" locks/agent.txt scripts/setup.sh)
    ! is_fresh "$AGENT_ENV" "$stamp" || return 0
    case $python in
        /usr/*) ;;
        *) say "note: $python lies outside /usr; a sandbox must also show $(dirname "$(dirname "$python")")" ;;
    esac
    inherit_pip_settings "$VENV/bin/python"
    rm -rf "$AGENT_ENV"
    # Copies, because agents' code runs beside these files and must never share them with a cache;
    # compiled here, because a read-only sandbox cannot keep the compiled form.
    step "creating $AGENT_ENV with $python" \
        "$VENV/bin/uv" venv --quiet --no-project --python "$python" "$AGENT_ENV"
    step "installing $(grep -c '^[a-z]' locks/agent.txt) locked packages for agents" \
        "$VENV/bin/uv" pip sync --quiet --python "$AGENT_ENV/bin/python" --link-mode copy \
        --compile-bytecode --require-hashes locks/agent.txt
    echo "$stamp" >"$AGENT_ENV/.setup-stamp"
}

main() {
    local python began=$SECONDS
    exec 9>.setup.lock
    flock -n 9 || { say "waiting for another set-up of this folder ..."; flock 9; }
    install_system_packages
    python=$(find_python) || fail "no Python 3.11 to 3.14 with the venv module was found.
       Run: sudo apt-get update && sudo apt-get install -y python3 python3-venv"
    set_up_venv "$python"
    set_up_agent_env "$python"
    [ $((SECONDS - began)) -lt 2 ] || say "ready after $((SECONDS - began)) s"
}

main "$@"
