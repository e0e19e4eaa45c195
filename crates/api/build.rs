//! Compiles the API's messages and service; needs no `protoc`.

use std::error::Error;
use std::path::Path;

const FOLDER: &str = "proto";
const FILE: &str = "proto/lockgate/v1/lockgate.proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed={FOLDER}");
    let descriptors = protox::compile([FILE], [FOLDER])?;
    let services = descriptors.file.iter().flat_map(|file| &file.service);
    let calls: Vec<&str> = services.flat_map(|of| &of.method).map(|call| call.name()).collect();
    let list = format!("/// Names of all calls.\npub const CALL_NAMES: &[&str] = &{calls:?};\n");
    std::fs::write(Path::new(&std::env::var("OUT_DIR")?).join("calls.rs"), list)?;
    tonic_prost_build::configure()
        .type_attribute(".", "#[derive(serde::Serialize, serde::Deserialize)]")
        .field_attribute("lockgate.v1.Explanation.lines", "#[serde(skip)]")
        .field_attribute("lockgate.v1.Event.details", "#[serde(with = \"crate::details\")]")
        // Key material is neither printed nor written as JSON.
        .field_attribute("lockgate.v1.NewSecurityAssociation.key", "#[serde(skip)]")
        .skip_debug(["lockgate.v1.NewSecurityAssociation"])
        .btree_map(".")
        .compile_fds(descriptors)?;
    Ok(())
}
