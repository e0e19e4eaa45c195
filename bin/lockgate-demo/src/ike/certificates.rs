//! Certificates in place of the shared key, made by strongSwan's `pki`.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use netlab::capture::Scope;
use netlab::charon::KeysInLog;
use netlab::ping::Ping;
use netlab::process;
use netlab::stream::Stream;
use netlab::{LabError, interrupt, programs};

use super::plan::Proof;
use super::stage::{A, B, Stage};
use crate::report::Check;

/// Time for a certificate.
const LIMIT: Duration = Duration::from_secs(60);
/// The authority's key and certificate.
const AUTHORITY: [&str; 2] = ["ca-key.pem", "ca.pem"];
/// Time that streams run.
const SENT_FOR: Duration = Duration::from_millis(500);

/// Makes an authority and a certificate for each gateway, starts both charons anew with these
/// alone, and carries traffic.
pub(super) fn certificates(stage: &mut Stage) -> Result<(), LabError> {
    const SCENE: &str = "certificates";
    if programs::find("pki").is_none() {
        stage.skip(SCENE, "there is no pki (apt-get install strongswan-pki)");
        return Ok(());
    }
    stage.say("an authority and two certificates, made by pki; both charons begin anew");
    let folder = stage.gateways.directory().join("authority");
    std::fs::create_dir_all(&folder).map_err(LabError::file(&folder))?;
    authority(&folder)?;
    let capture = stage.capture(Scope::Heads)?;
    // A gateway without SAs asks its charon for them once both run.
    stage.terminate()?;
    for number in [A, B] {
        stage.kill_charon(number);
        certify(&folder, &stage.charon_folder(number), &stage.end(number).names[0])?;
    }
    stage.prove_by(Proof::Certificate);
    for number in [A, B] {
        stage.start_charon(number, &Proof::Certificate, KeysInLog::No)?;
    }
    let to = stage.gateways.site(B).host_v4();
    let answers = Ping::new(&to, 5).run_until_answered(&stage.gateways.site(A).host)?;
    let streams = stage.both_ways()?;
    interrupt::sleep(SENT_FOR)?;
    let deliveries = streams.map(Stream::finish);
    let (lost, sent) = stage.note_lost(&deliveries);
    let wire = stage.add_capture(capture)?;
    let log = stage.charon(A)?.log();
    let peer = &stage.end(A).names[1];
    let proven = log.contains(&format!("authentication of '{peer}' with ECDSA"))
        && !log.contains("pre-shared key");
    stage.note(Check {
        name: "with certificates alone a tunnel comes up, and carries packets",
        ok: proven && answers.all_answered() && lost == 0 && sent > 0 && wire.clear == 0,
        detail: format!(
            "{peer} {} with ECDSA; {}; {lost} of {sent} packets lost, {} in clear",
            if proven { "proved itself" } else { "did NOT prove itself" },
            answers.summary(),
            wire.clear
        ),
    });
    Ok(())
}

/// Makes the authority's key and certificate.
fn authority(folder: &Path) -> Result<(), LabError> {
    let [key, certificate] = AUTHORITY.map(|name| folder.join(name));
    pki(&["--gen", "--type", "ecdsa", "--size", "256"], &[], &key)?;
    let words = ["--self", "--ca", "--type", "ecdsa", "--dn", "CN=Laboratory", "--lifetime", "2"];
    pki(&words, &[("--in", &key)], &certificate)
}

/// Makes a gateway's key, and its certificate, where its charon finds both.
fn certify(folder: &Path, charon: &Path, name: &str) -> Result<(), LabError> {
    let [authority_key, authority] = AUTHORITY.map(|name| folder.join(name));
    for kind in ["private", "x509", "x509ca"] {
        let place = charon.join(kind);
        std::fs::create_dir_all(&place).map_err(LabError::file(&place))?;
    }
    let file = format!("{name}.pem");
    let key = charon.join("private").join(&file);
    pki(&["--gen", "--type", "ecdsa", "--size", "256"], &[], &key)?;
    let subject = format!("CN={name}");
    pki(
        &["--issue", "--type", "ecdsa", "--dn", &subject, "--san", name, "--lifetime", "1"],
        &[("--in", &key), ("--cacert", &authority), ("--cakey", &authority_key)],
        &charon.join("x509").join(&file),
    )?;
    let place = charon.join("x509ca").join("ca.pem");
    std::fs::copy(&authority, &place).map_err(LabError::file(&place)).map(drop)
}

/// Runs `pki`, with options that name files, and writes what it prints.
fn pki(words: &[&str], files: &[(&str, &Path)], to: &Path) -> Result<(), LabError> {
    let mut command = Command::new("pki");
    command.args(words).args(["--outform", "pem"]);
    for (option, file) in files {
        command.arg(option).arg(file);
    }
    let text = process::succeed(command, LIMIT)?;
    std::fs::write(to, text).map_err(LabError::file(to))
}
