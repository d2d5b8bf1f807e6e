# shellcheck shell=bash
# Sourced by the scripts beside it: makes the virtual environment in .venv, or brings it up to date if it is not.
# `set_up serve` installs what the daemon needs, `set_up dev` what the tests need as well.
# Exports REPO and PYTHON (the interpreter of the environment). Call it under `set -e`, and not as a condition.

REPO=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
export REPO

say() { printf '%s\n' "$*" >&2; }

is_fit_python() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; }

# The first Python that runs and fits: 3.11, which the lock files are made with, before 3.12 and 3.13.
find_python() {
    local candidate
    for candidate in python3.11 /usr/bin/python3.11 python3.12 python3.13 python3; do
        if is_fit_python "$candidate"; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    return 1
}

# Installs missing Debian packages as root (Debian splits venv from Python); otherwise says what to install, and fails.
need_debian_packages() {
    say "missing: $*"
    if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
        say "please install it (on Debian 12: apt-get install $*) and start again"
        return 1
    fi
    apt-get update -q >&2
    DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends --no-upgrade "$@" >&2
}

# What the environment depends on: the lock files, how the project is installed, and where the checkout is.
stamp_of() {
    {
        cat "$REPO/requirements/build.lock" "$REPO/requirements/$1.lock" "$REPO/pyproject.toml" "$REPO/scripts/setup.sh"
        printf '%s\n' "$REPO"
    } | sha256sum | cut -d' ' -f1
}

works() { is_fit_python "$REPO/.venv/bin/python"; }

up_to_date() {
    local level
    for level in "$@"; do
        [[ -f $REPO/.venv/stamp-$level && $(<"$REPO/.venv/stamp-$level") == "$(stamp_of "$level")" ]] && works && return
    done
    return 1
}

make_environment() {
    local level=$1 base pip
    if ! works; then
        rm -rf "$REPO/.venv"
        if [[ -n ${PYTHON:-} ]]; then
            # The caller chose this interpreter: if it does not fit, no other is taken.
            base=$PYTHON
            is_fit_python "$base" || { say "PYTHON=$base is not a Python 3.11, 3.12 or 3.13" && exit 1; }
        elif ! base=$(find_python); then
            need_debian_packages python3.11 python3.11-venv
            base=$(find_python)
        fi
        if ! "$base" -c 'import ensurepip, venv' 2>/dev/null; then
            need_debian_packages "python$("$base" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv"
        fi
        say "making a virtual environment with $("$base" --version)"
        "$base" -m venv "$REPO/.venv"
    fi
    rm -f "$REPO/.venv/stamp-$level"
    say "installing the packages of requirements/$level.lock"
    pip=("$REPO/.venv/bin/python" -m pip --disable-pip-version-check install --quiet --no-input)
    # The build tool first and pinned like the rest, so that nothing unpinned is fetched to build a source package.
    "${pip[@]}" --require-hashes --requirement "$REPO/requirements/build.lock" >&2
    "${pip[@]}" --require-hashes --no-build-isolation --requirement "$REPO/requirements/$level.lock" >&2
    # An older environment may have the distribution under its former name, topics.
    if "$REPO/.venv/bin/python" -c 'import importlib.metadata as m; m.version("topics")' 2>/dev/null; then
        "$REPO/.venv/bin/python" -m pip --disable-pip-version-check uninstall --quiet --yes topics >&2
    fi
    # Installed by its path, not by a finder: Spark finds data sources only among modules that can be listed.
    "${pip[@]}" --no-deps --no-build-isolation --no-index --config-settings editable_mode=compat --editable "$REPO" >&2
    stamp_of "$level" >"$REPO/.venv/stamp-$level"
}

# set_up serve|dev. Two calls at once wait for each other (a lock on the directory of the checkout).
set_up() {
    local level=$1 enough=("$1")
    [[ $level == serve ]] && enough=(serve dev)
    if ! up_to_date "${enough[@]}"; then
        (
            set -euo pipefail
            exec 9<"$REPO"
            flock 9
            up_to_date "${enough[@]}" || make_environment "$level" 9<&-
        )
    fi
    PYTHON=$REPO/.venv/bin/python
    export PYTHON
}
