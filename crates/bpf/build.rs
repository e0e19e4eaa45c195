//! Writes `lockgate.h` out of `src/layout.rs`, and compiles the XDP programs, `c/*.bpf.c`, with
//! clang and libbpf's linker. `libbpf-cargo` does the same, and brings a dozen packages.

#[allow(dead_code, unreachable_pub)]
#[path = "src/layout.rs"]
mod layout;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::{env, fs};

use libbpf_rs::{Linker, libbpf_sys};
use wire::card_header::{CARD_CIPHER, CARD_FORGED, CARD_MAGIC, CARD_PLAIN, CARD_RULE, CARD_SA_OF};
use wire::mark::{
    CARD_DECIPHERED, CARD_NOT_AUTHENTIC, CARD_SA, CARD_TAG, MAGIC, VLAN_OTHER, VLAN_UNTAGGED,
};
use wire::shared::SharedStruct;
use wire::{CardHeader, Mark};

use layout::*;

/// Each becomes `NAME.bpf.o`.
const NAMES: [&str; 4] = ["steer", "overlay", "traffic", "constant"];

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
    let folder = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    fs::write(folder.join("lockgate.h"), header()).expect("cargo made the folder");
    write_libbpf_headers(&folder.join("bpf"));
    let mut good = true;
    for name in NAMES {
        if let Err(error) = build(name, &folder, &clang) {
            let lines = error.trim_end().replace('\n', "\ncargo::error=");
            println!("cargo::error=c/{name}.bpf.c does not compile: {lines}");
            good = false;
        }
    }
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Writes the headers of libbpf that programs include as `bpf/NAME.h`.
fn write_libbpf_headers(folder: &Path) {
    fs::create_dir_all(folder).expect("cargo made its parent");
    for (name, text) in libbpf_sys::API_HEADERS {
        fs::write(folder.join(name), text).expect("the folder is there");
    }
}

/// Compiles and links a program. Linking strips the debug information, which names folders, and
/// keeps BTF.
fn build(name: &str, folder: &Path, clang: &OsStr) -> Result<(), String> {
    let compiled = folder.join(format!("{name}.clang.o"));
    let mut command = Command::new(clang);
    command.args(clang_arguments(folder)).args(["-g", "-O2", "-target", "bpf", "-c"]);
    command.arg(format!("c/{name}.bpf.c")).arg("-o").arg(&compiled);
    let output = command.output().map_err(|error| format!("{}: {error}", clang.display()))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let linked = folder.join(format!("{name}.bpf.o"));
    let link = || {
        let mut linker = Linker::new(&linked)?;
        linker.add_file(&compiled)?;
        linker.link()
    };
    link().map_err(|error: libbpf_rs::Error| format!("linking: {error:#}"))
}

/// Warnings are errors; and Debian keeps `asm/types.h` where clang, compiling for another machine,
/// does not look.
fn clang_arguments(folder: &Path) -> Vec<String> {
    let architecture = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    let mut arguments: Vec<String> =
        ["-Wall", "-Wextra", "-Werror", "-mcpu=v3"].map(String::from).into();
    // BPF has no stack protector (https://lkml.org/lkml/2020/2/21/1000).
    arguments.push("-fno-stack-protector".into());
    let kernel_name = match architecture.as_str() {
        "x86_64" => "x86",
        "aarch64" => "arm64",
        other => other,
    };
    arguments.push(format!("-D__TARGET_ARCH_{kernel_name}"));
    arguments.push(format!("-I{}", folder.display()));
    // The object is part of the program, and is to be the same wherever it was compiled.
    let here = env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    arguments.push(format!("-ffile-prefix-map={here}=."));
    arguments.push(format!("-ffile-prefix-map={}=.", folder.display()));
    arguments.push("-fdebug-compilation-dir=.".into());
    let headers = format!("/usr/include/{architecture}-linux-gnu");
    if Path::new(&headers).exists() {
        arguments.push(format!("-idirafter{headers}"));
    }
    arguments
}

macro_rules! defines {
    ($($name:ident)+) => {
        [$((stringify!($name), $name.to_string())),+]
    };
}

/// Returns what C and Rust share, in C: of each name, `LOCKGATE_` and the name.
fn header() -> String {
    let mut header = String::from(
        "/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */\n\
         /* Written by build.rs, out of src/layout.rs, and the headers of crate wire. */\n\
         #ifndef LOCKGATE_H\n#define LOCKGATE_H\n\n#include <linux/types.h>\n\n",
    );
    let numbers = defines!(
        MAGIC VLAN_UNTAGGED VLAN_OTHER
        CARD_TAG CARD_SA CARD_DECIPHERED CARD_NOT_AUTHENTIC
        CARD_MAGIC CARD_PLAIN CARD_RULE CARD_SA_OF CARD_CIPHER CARD_FORGED LINK_CARDED
        MAX_PORTS MAX_SERVICES MAX_OVERLAYS MAX_ADDRESSES MAX_PREFIXES MAX_QUEUES COUNTERS
        MAX_CARRIED_SAS
        SIDE_PROTECTED SIDE_UNPROTECTED
        SERVICE_PORTS SERVICE_TO_US SERVICE_TO_GROUPS SERVICE_FRAGMENTS
        OWN_PROTECTED OWN_UNPROTECTED CARRIED_OUT CARRIED_IN
        XDP_ACTIONS TIERS TIER_OVERLAY MAX_TIER_OVERLAYS MAX_ENTRANCES MAX_EXITS
        KIND_VXLAN KIND_GENEVE NETWORK_OPEN NETWORK_ASKS VERDICT_PERMIT VERDICT_DROP WAY_OPEN MISSES
        BUCKET_PLACES HASH_FACTOR
        SAMPLE_SENT SAMPLE_DROPPED SAMPLE_ANSWERED NO_FLOW
        HEADER_BYTES TENANT_BYTES MAX_FLOWS
    );
    for (name, number) in numbers {
        header += &format!("#define LOCKGATE_{name} {number}\n");
    }
    header += "\nenum lockgate_counter {\n";
    for counter in Counter::ALL {
        let name = counter.name().to_uppercase();
        header += &format!("\tLOCKGATE_{name} = {},\n", counter as u32);
    }
    header += "};\n\nenum lockgate_miss {\n";
    for miss in Miss::ALL {
        let name = miss.name().to_uppercase();
        header += &format!("\tLOCKGATE_MISS_{name} = {},\n", miss as u32);
    }
    header += &format!("\tLOCKGATE_MISS_NONE = {MISSES},\n}};\n\n");
    // A struct comes behind those that it holds.
    header += &[
        Mark::definition(),
        CardHeader::definition(),
        KernelCounters::definition(),
        Options::definition(),
        LeaseEntry::definition(),
        OverlayEntry::definition(),
        NetworkEntry::definition(),
        BucketEntry::definition(),
        EndpointEntry::definition(),
        FlowKeyEntry::definition(),
        FlowEntry::definition(),
        FlowUseEntry::definition(),
        WayEntry::definition(),
        SampleEntry::definition(),
        ServiceEntry::definition(),
        PortEntry::definition(),
        PortsEntry::definition(),
        AddressKey::definition(),
        CarriedSaKey::definition(),
        PrefixKey::definition(),
        TrafficOptions::definition(),
        ConstantOptions::definition(),
        Received::definition(),
    ]
    .join("\n");
    header + "\n#endif\n"
}
