//! The releases of Debian that packages are for.

use std::fs;

/// A release of Debian.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Release {
    /// 12.
    Bookworm,
    /// 13.
    Trixie,
}

impl Release {
    /// Returns the one that this machine runs; 12 where it is neither.
    pub(crate) fn of_this_machine() -> Release {
        let about = fs::read_to_string("/etc/os-release").unwrap_or_default();
        let is_trixie = about.lines().any(|line| line == "VERSION_CODENAME=trixie");
        if is_trixie { Release::Trixie } else { Release::Bookworm }
    }

    /// The releases that packages made on this machine can be for: its own and later ones. Earlier
    /// ones have an older C library.
    pub(crate) fn to_build_for() -> Vec<Release> {
        let all = [Release::Bookworm, Release::Trixie];
        all.into_iter().filter(|release| *release >= Release::of_this_machine()).collect()
    }

    /// Returns its name.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Release::Bookworm => "bookworm",
            Release::Trixie => "trixie",
        }
    }

    /// Returns its number.
    pub(crate) const fn number(self) -> &'static str {
        match self {
            Release::Bookworm => "12",
            Release::Trixie => "13",
        }
    }
}
