//! Finds the library, compiles the shim against its installed header, and links both.
//!
//! | `LOCKGATE_IPSEC_MB_DIR` | what is taken |
//! |---|---|
//! | not set | the first of [`PREFIXES`] with header and library; none of them: no library |
//! | a directory | `include/intel-ipsec-mb.h` and `lib/libIPSec_MB.*` in it, or the build fails |
//! | `none` | no library |
//!
//! Libraries before 1.3 are passed over: they lack bursts of hashes.
//!
//! The structures of the header differ between the library's versions. So nothing of it is copied:
//! the shim is compiled against the header that belongs to the library that is linked. With it
//! goes the cfg `ipsec_mb`; without it the crate says that there is no library.
//!
//! `LOCKGATE_IPSEC_MB_ARCH`, for tests only: `sse`, `avx2` or `avx512` takes the library's code for
//! such processors; not set, it chooses by itself.
//!
//! The archive is preferred: it is there on every machine that the program runs on. Where there
//! is only the shared library, in a directory of its own, the program needs `LD_LIBRARY_PATH`.

use std::env;
use std::path::{Path, PathBuf};

const VARIABLE: &str = "LOCKGATE_IPSEC_MB_DIR";
const ARCHITECTURE: &str = "LOCKGATE_IPSEC_MB_ARCH";
const HEADER: &str = "intel-ipsec-mb.h";
const ARCHIVE: &str = "libIPSec_MB.a";
const SHARED: &str = "libIPSec_MB.so";
const SHIM: &str = "c/shim.c";

/// The first version whose header has all that the shim uses: 1.3.0, as the header writes it.
const OLDEST: u32 = 0x1_03_00;
const VERSION: &str = "#define IMB_VERSION_NUM";

/// The directories in which distributions put headers, each with those of the library.
const PREFIXES: &[(&str, &[&str])] = &[
    ("/usr/local/include", &["/usr/local/lib", "/usr/local/lib64"]),
    ("/usr/include", &["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"]),
];

/// Header and library that belong together.
struct Found {
    include: PathBuf,
    library: PathBuf,
    kind: Kind,
}

#[derive(Clone, Copy)]
enum Kind {
    Archive,
    Shared,
}

fn main() {
    println!("cargo::rustc-check-cfg=cfg(ipsec_mb)");
    println!("cargo::rerun-if-env-changed={VARIABLE}");
    println!("cargo::rerun-if-env-changed={ARCHITECTURE}");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={SHIM}");
    if !is_for("ARCH", "x86_64") || !is_for("OS", "linux") {
        return;
    }
    let found = match env::var(VARIABLE) {
        Ok(none) if none == "none" => return,
        Ok(prefix) => {
            let prefix = Path::new(&prefix);
            let found = find(&prefix.join("include"), &[prefix.join("lib")]);
            Some(found.unwrap_or_else(|| {
                panic!("{VARIABLE}: no {HEADER} of 1.3 or later and library in it")
            }))
        }
        Err(_) => PREFIXES.iter().find_map(|(include, libraries)| {
            let libraries: Vec<_> = libraries.iter().map(PathBuf::from).collect();
            find(Path::new(include), &libraries)
        }),
    };
    match found {
        Some(found) => link(&found),
        // Installing the header changes its directory. The header itself cannot be watched: a
        // file that is not there counts as changed, every time.
        None => PREFIXES
            .iter()
            .map(|(include, _)| include)
            .filter(|path| Path::new(path).exists())
            .for_each(|path| println!("cargo::rerun-if-changed={path}")),
    }
}

/// Returns whether the crate is compiled for this.
fn is_for(what: &str, value: &str) -> bool {
    env::var(format!("CARGO_CFG_TARGET_{what}")).is_ok_and(|target| target == value)
}

fn find(include: &Path, libraries: &[PathBuf]) -> Option<Found> {
    if version(&include.join(HEADER))? < OLDEST {
        println!("cargo::warning=ipsec-mb in {} is older than 1.3: not used", include.display());
        return None;
    }
    let kinds = [(ARCHIVE, Kind::Archive), (SHARED, Kind::Shared)];
    kinds.iter().find_map(|(file, kind)| {
        let library = libraries.iter().find(|path| path.join(file).exists())?;
        Some(Found { include: include.to_owned(), library: library.clone(), kind: *kind })
    })
}

/// The version that a header tells; `None`: there is no such header.
fn version(header: &Path) -> Option<u32> {
    let text = std::fs::read_to_string(header).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(VERSION))?;
    u32::from_str_radix(line.trim().strip_prefix("0x")?, 16).ok()
}

fn link(found: &Found) {
    let Found { include, library, kind } = found;
    let mut shim = cc::Build::new();
    shim.file(SHIM).include(include).std("c11").opt_level(3).warnings(true).extra_warnings(true);
    // A function of the library that has other arguments than the Rust side believes must not
    // compile.
    shim.flag("-Werror=incompatible-pointer-types").flag("-Werror=int-conversion");
    match env::var(ARCHITECTURE) {
        Ok(name) if ["sse", "avx2", "avx512"].contains(&name.as_str()) => {
            shim.define("INIT_MANAGER", format!("init_mb_mgr_{name}").as_str());
        }
        Ok(name) => panic!("{ARCHITECTURE}: {name} is not one of sse, avx2, avx512"),
        Err(_) => {}
    }
    shim.compile("lockgate_ipsec_mb");
    println!("cargo::rustc-link-search=native={}", library.display());
    let (linked, file) = match kind {
        Kind::Archive => ("static:-bundle=IPSec_MB", ARCHIVE),
        Kind::Shared => ("dylib=IPSec_MB", SHARED),
    };
    println!("cargo::rustc-link-lib={linked}");
    println!("cargo::rustc-cfg=ipsec_mb");
    println!("cargo::rerun-if-changed={}", include.join(HEADER).display());
    println!("cargo::rerun-if-changed={}", library.join(file).display());
}
