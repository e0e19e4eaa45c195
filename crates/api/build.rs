//! Compiles the API's messages and service; needs no `protoc`.

use std::error::Error;

const FOLDER: &str = "proto";
const FILE: &str = "proto/lockgate/v1/lockgate.proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed={FOLDER}");
    let descriptors = protox::compile([FILE], [FOLDER])?;
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
