//! The libraries that can stand behind the seam, by name.

use std::sync::OnceLock;

/// A library, or a set of them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BackendKind {
    /// Intel's multi-buffer library, where it was found and this processor can run it; on old
    /// processors without ChaCha20-Poly1305.
    IpsecMb,
    /// Ring: everywhere; AES-128-GCM, AES-256-GCM and ChaCha20-Poly1305.
    Ring,
    /// AWS-LC, with RustCrypto's AES-CBC: everywhere, and every suite.
    AwsLc,
}

impl BackendKind {
    /// All, the first choice among equals first; the last is everywhere and has every suite.
    pub const ALL: &[BackendKind] = &[BackendKind::IpsecMb, BackendKind::Ring, BackendKind::AwsLc];

    /// Returns the backend's name, as options and results give it.
    pub const fn name(self) -> &'static str {
        match self {
            BackendKind::IpsecMb => "ipsec-mb",
            BackendKind::Ring => "ring",
            BackendKind::AwsLc => "aws-lc-rs",
        }
    }

    /// The backend with this name.
    pub fn from_name(name: &str) -> Option<BackendKind> {
        BackendKind::ALL.iter().copied().find(|kind| kind.name() == name)
    }

    /// The version of a library that was found on the machine; `None` if it is not there, or was
    /// chosen when the program was built.
    pub fn version(self) -> Option<&'static str> {
        match self {
            BackendKind::IpsecMb => ipsec_mb::version(),
            BackendKind::Ring | BackendKind::AwsLc => None,
        }
    }

    /// Returns whether this machine has it.
    pub fn is_available(self) -> bool {
        match self {
            BackendKind::IpsecMb => ipsec_mb::version().is_some(),
            BackendKind::Ring | BackendKind::AwsLc => true,
        }
    }
}

/// "ipsec-mb 1.3.0 (avx512 vaes)": the library and what it uses of the processor.
pub(super) fn ipsec_mb_name() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| {
        let version = ipsec_mb::version().unwrap_or("not there");
        format!("ipsec-mb {version} ({})", ipsec_mb::architecture())
    })
}
