# The beginning of the scripts beside this file, which run in a mount namespace that ends with them:
# no mount outlives one. $1 is a folder with the Debian root `clean`, which nothing changes.
set -eu
FOLDER=$1
ROOT=$FOLDER/root

# root_over NAME: the clean root as $ROOT, with all changes in folder NAME.
root_over() {
    mkdir -p "$FOLDER/$1/upper" "$FOLDER/$1/work" "$ROOT"
    mount -t overlay -o "lowerdir=$FOLDER/clean,upperdir=$FOLDER/$1/upper,workdir=$FOLDER/$1/work" \
        none "$ROOT"
    kernel_files
}

# What a program expects of the kernel, in the root.
kernel_files() {
    mount -t proc none "$ROOT/proc"
    mount -t sysfs none "$ROOT/sys"
    mount --rbind /dev "$ROOT/dev"
    mount -t tmpfs none "$ROOT/run"
    mount -t tmpfs none "$ROOT/tmp"
}

# inside COMMAND …: in the root, with nothing of this machine's environment.
inside() {
    # shellcheck disable=SC2086 # words for `env`
    env -i HOME=/ PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive \
        LC_ALL="${SPEAKS:-C}" chroot "$ROOT" "$@"
}

# apt COMMAND …
apt() {
    inside apt-get -qq -o Acquire::Retries=3 -o Dpkg::Use-Pty=0 "$@"
}

die() {
    echo "FAILED: $*" >&2
    exit 1
}

ok() {
    echo "ok $*"
    passed=$((passed + 1))
}

skip() {
    echo "SKIPPED: $*"
    skipped=$((skipped + 1))
}
