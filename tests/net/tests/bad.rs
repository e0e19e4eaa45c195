//! Bad input: one clear message each, nothing half taken, never open.

use std::path::{Path, PathBuf};
use std::process::Command;

use net::{AGAIN, Lab, lab, running};
use netlab::Daemon;
use netlab::capture::{Scope, Tally};
use netlab::ping::Ping;
use netlab::process::Finished;
use netlab::sites::Plan;

/// Starts the daemon of gateway 1 with its file as it is, and waits for it to end by itself.
fn refused(lab: &Lab) -> Finished {
    let gateways = &lab.gateways;
    let file = gateways.file(1);
    file.write().unwrap();
    let daemon = Daemon::launch(&gateways.programs, &gateways.site(1).gateway, file).unwrap();
    let finished = daemon.finish(net::AGAIN).unwrap();
    assert!(!finished.status.success(), "it ended with {}", finished.status);
    finished
}

/// Fails unless a message names all of `words`.
fn says(finished: &Finished, words: &[&str]) {
    for word in words {
        assert!(finished.stderr.contains(word), "no \"{word}\" in: {}", finished.stderr);
    }
    assert!(!finished.stderr.contains("panicked"), "{}", finished.stderr);
}

/// Fails if the gateway is not as it was found: no program, no guard, Linux forwards.
fn as_it_was_found(lab: &Lab) {
    let gateway = &lab.gateways.site(1).gateway;
    let links = gateway.ip_json(&["-details", "link"]).unwrap();
    for link in links.as_array().unwrap() {
        assert!(link.get("xdp").is_none(), "a program is left: {link}");
    }
    let tables = gateway.run(&["nft", "list", "tables"], AGAIN).unwrap().success().unwrap();
    assert!(!tables.contains("lockgate"), "{tables}");
    let to = lab.gateways.site(2).host_v4();
    let answers = Ping::new(&to, 5).run_until_answered(&lab.gateways.site(1).host).unwrap();
    assert!(answers.all_answered(), "{}", answers.text);
}

#[test]
fn a_port_that_does_not_exist_is_named_and_nothing_is_taken() {
    let Some(mut lab) = lab("missing_port", Plan::default()) else { return };
    lab.gateways.file_mut(1).extra += "\n[port.dmz]\nnetdev = \"nowhere\"\nside = \"protected\"\n";
    says(&refused(&lab), &["dmz", "nowhere"]);
    as_it_was_found(&lab);
}

#[test]
fn a_port_that_is_a_bridges_member_is_refused_with_the_reason() {
    let Some(mut lab) = lab("bridge_member", Plan::default()) else { return };
    let gateway = &lab.gateways.site(1).gateway;
    gateway
        .ip("link add br9 type bridge\nlink add spare type veth peer name spare-end
             link set spare master br9 up")
        .unwrap();
    lab.gateways.file_mut(1).extra += "\n[port.dmz]\nnetdev = \"spare\"\nside = \"protected\"\n";
    says(&refused(&lab), &["spare", "bridge"]);
    as_it_was_found(&lab);
}

#[test]
fn a_second_daemon_is_refused_and_the_first_goes_on() {
    let Some(mut lab) = running("second_daemon", Plan::default()) else { return };
    let quarry = lab.hunt(|gateways| {
        let (file, gateway) = (gateways.file(1), &gateways.site(1).gateway);
        let second = Daemon::launch(&gateways.programs, gateway, file).unwrap();
        let finished = second.finish(net::AGAIN).unwrap();
        assert!(!finished.status.success());
        says(&finished, &["another lockgated listens there"]);
    });
    for stream in &quarry.streams {
        assert_eq!(stream.lost(), 0, "of {}", stream.sent.len());
    }
    lab.balances();
}

#[test]
fn a_second_daemon_with_directories_of_its_own_gets_no_port() {
    let Some(mut lab) = running("second_owner", Plan::default()) else { return };
    let quarry = lab.hunt(|gateways| {
        let file = gateways.file(1);
        let other = file.beside("other.toml");
        let mut text = file.text();
        for directory in [file.run_dir(), file.state_dir()] {
            let name = directory.display().to_string();
            text = text.replace(&format!("\"{name}\""), &format!("\"{name}2\""));
        }
        std::fs::write(&other, text).unwrap();
        let mut command = gateways.site(1).gateway.command(&gateways.programs.lockgated);
        command.arg("--config").arg(&other);
        let finished = netlab::process::run(command, net::AGAIN).unwrap();
        assert!(!finished.status.success());
        says(&finished, &["lan"]);
    });
    for stream in &quarry.streams {
        assert_eq!(stream.lost(), 0, "of {}", stream.sent.len());
    }
    lab.balances();
}

#[test]
fn without_privileges_the_message_says_which_and_how_to_get_them() {
    let Some(lab) = lab("no_privilege", Plan::default()) else { return };
    let file = lab.gateways.file(1).path();
    let (lockgated, file) =
        (lab.gateways.programs.lockgated.display().to_string(), file.display().to_string());
    // Root without capabilities: it may read the files, and do nothing with the network.
    let words =
        ["setpriv", "--bounding-set=-all", "--inh-caps=-all", &lockgated, "--config", &file];
    let finished = lab.gateways.site(1).gateway.run(&words, net::AGAIN).unwrap();
    if finished.stderr.contains("setpriv:") {
        println!("SKIPPED: no_privilege: {}", finished.stderr.trim());
        return;
    }
    assert!(!finished.status.success());
    says(&finished, &["CAP_NET_ADMIN"]);
    as_it_was_found(&lab);
}

#[test]
fn a_host_port_that_is_refused_is_told_and_nothing_is_taken() {
    let Some(lab) = lab("tun_refused", Plan::default()) else { return };
    lab.gateways.site(1).gateway.ip("link add lockgate0 type bridge").unwrap();
    says(&refused(&lab), &["lockgate0"]);
    as_it_was_found(&lab);
}

#[test]
fn a_broken_file_is_told_with_its_place_and_nothing_is_taken() {
    let Some(mut lab) = lab("broken_file", Plan::default()) else { return };
    lab.gateways.file_mut(1).extra += "\n[[policy]]\nname = \"x\"\nacton = \"bypass\"\n";
    says(&refused(&lab), &["lockgate.toml:", "acton", "action"]);
    as_it_was_found(&lab);
}

#[test]
fn applying_a_bad_file_changes_nothing() {
    let Some(mut lab) = running("bad_apply", Plan::default()) else { return };
    let quarry = lab.hunt(|gateways| {
        let mut changed = gateways.file(1).clone();
        changed.extra += "\n[port.dmz]\nnetdev = \"nowhere\"\nside = \"sideways\"\n";
        let other = changed.write_as(&changed.beside("changed.toml")).unwrap();
        let words = ["apply", "-f", &other.display().to_string()];
        let finished = gateways.daemon(1).unwrap().run(&words).unwrap();
        assert!(!finished.status.success());
        assert!(finished.stderr.contains("sideways"), "{}", finished.stderr);
    });
    for stream in &quarry.streams {
        assert_eq!(stream.lost(), 0, "of {}", stream.sent.len());
    }
}

/// A small file system that is full, until it is dropped.
struct Full(PathBuf);

impl Full {
    fn mount(path: &Path) -> Full {
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=16k,mode=700", "tmpfs"]).arg(path);
        assert!(mount.status().unwrap().success());
        let full = Full(path.to_owned());
        let filled = std::fs::write(path.join("filler"), vec![0; 1 << 20]);
        assert!(filled.is_err(), "it is not full");
        full
    }
}

impl Drop for Full {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_under_the_reservations_lets_nothing_be_sealed_and_nothing_out() {
    let Some(mut lab) = lab("full_disk", Plan::default()) else { return };
    lab.gateways.start(2).unwrap();
    let full = Full::mount(&lab.gateways.file(1).state_dir());
    let started = lab.gateways.start(1);
    let capture = lab.gateways.capture(Scope::Heads).unwrap();
    let to = lab.gateways.site(2).host_v4();
    let answers = Ping::new(&to, 10).run(&lab.gateways.site(1).host).unwrap();
    let tally = Tally::of(&capture.stop().unwrap()).unwrap();
    match started {
        // It runs: then closed, and it says why.
        Ok(_) => {
            assert_eq!((answers.received, tally.clear), (0, 0), "{:?}", tally.clear_examples);
            let log = lab.gateways.daemon(1).unwrap().log();
            assert!(log.contains("space"), "{log}");
        }
        // It refuses to start, and says why; the machine is as it was found.
        Err(error) => {
            assert!(error.to_string().contains("space"), "{error}");
            as_it_was_found_with_peer_closed(&lab);
        }
    }
    drop(full);
    lab.gateways.kill(1);
    lab.gateways.start(1).unwrap();
    lab.flows_again();
}

/// Asserts [`as_it_was_found`] where the other gateway runs: nothing can cross.
fn as_it_was_found_with_peer_closed(lab: &Lab) {
    let gateway = &lab.gateways.site(1).gateway;
    let links = gateway.ip_json(&["-details", "link"]).unwrap();
    assert!(links.as_array().unwrap().iter().all(|link| link.get("xdp").is_none()), "{links}");
}
