//! Compiles the XDP programs, `c/*.bpf.c`, with clang.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use libbpf_cargo::SkeletonBuilder;

/// Each becomes `NAME.bpf.o`.
const NAMES: [&str; 2] = ["steer", "traffic"];

fn main() -> ExitCode {
    println!("cargo::rerun-if-changed=c");
    println!("cargo::rerun-if-env-changed=CLANG");
    println!("cargo::rerun-if-env-changed=PATH");
    let clang = env::var_os("CLANG").unwrap_or_else(|| "clang".into());
    let mut version = Command::new(&clang);
    version.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    if !version.status().is_ok_and(|status| status.success()) {
        println!(
            "cargo::error=clang is missing ({}): it compiles the XDP program. `make setup` \
             installs it; on Debian: apt-get install clang. CLANG=/path names another.",
            clang.display()
        );
        return ExitCode::FAILURE;
    }
    if NAMES.into_iter().all(|name| build(name, &clang)) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn build(name: &str, clang: &OsStr) -> bool {
    let source = format!("c/{name}.bpf.c");
    let folder = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let built = SkeletonBuilder::new()
        .source(&source)
        .obj(folder.join(format!("{name}.bpf.o")))
        .clang(clang)
        .clang_args(clang_arguments())
        .build();
    if let Err(error) = &built {
        let lines = format!("{error:#}").replace('\n', "\ncargo::error=");
        println!("cargo::error={source} does not compile: {lines}");
    }
    built.is_ok()
}

/// Warnings are errors; and Debian keeps `asm/types.h` where clang, compiling for another machine,
/// does not look.
fn clang_arguments() -> Vec<String> {
    let architecture = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    let mut arguments: Vec<String> =
        ["-Wall", "-Wextra", "-Werror", "-mcpu=v3", "-Ic"].map(String::from).into();
    // The object is part of the program, and is to be the same wherever it was compiled.
    let here = env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    arguments.push(format!("-ffile-prefix-map={here}=."));
    arguments.push("-fdebug-compilation-dir=.".into());
    let headers = format!("/usr/include/{architecture}-linux-gnu");
    if Path::new(&headers).exists() {
        arguments.push(format!("-idirafter{headers}"));
    }
    arguments
}
