#![allow(dead_code, unused)]
// What an adversary, or an operator in a hurry, does to a live gateway.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::time::Duration;

use net::{AGAIN, running};
use netlab::Namespace;
use netlab::sites::Plan;

fn pause(milliseconds: u64) {
    std::thread::sleep(Duration::from_millis(milliseconds));
}

/// What a command prints.
fn told(namespace: &Namespace, words: &[&str]) -> String {
    namespace.run(words, AGAIN).unwrap().success().unwrap()
}

/// Index of a netdev.
fn index(namespace: &Namespace, name: &str) -> u64 {
    namespace.ip_json(&["link", "show", "dev", name]).unwrap()[0]["ifindex"].as_u64().unwrap()
}

/// Claims a netdev as another daemon would, until dropped.
fn claim(namespace: &Namespace, name: &str) -> UnixListener {
    let claim = format!("lockgate/port/{}", index(namespace, name));
    let bind = || UnixListener::bind_addr(&SocketAddr::from_abstract_name(claim).unwrap());
    namespace.enter(bind).unwrap().unwrap()
}

#[test]
fn experiment_threads() {
    let Some(lab) = running("threads", Plan::default()) else { return };
    let pid = lab.gateways.daemon(1).unwrap().pid();
    for entry in std::fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
        let path = entry.unwrap().path();
        let status = std::fs::read_to_string(path.join("status")).unwrap();
        for line in status.lines() {
            if ["Name", "Cap", "NoNew", "VmLck", "Seccomp"].iter().any(|w| line.starts_with(w)) {
                print!("{line}; ");
            }
        }
        println!();
    }
    let file = lab.gateways.file(1);
    for d in [file.run_dir(), file.state_dir()] {
        let o =
            std::process::Command::new("find").arg(d).args(["-printf", "%M %u:%g %p\n"]).output();
        println!("{}", String::from_utf8_lossy(&o.unwrap().stdout));
    }
    let maps = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    println!("{maps}");
    println!("{}", told(&lab.gateways.site(1).gateway, &["nft", "list", "ruleset"]));
    println!("{}", told(&lab.gateways.site(1).gateway, &["ip", "rule"]));
    println!("{}", told(&lab.gateways.site(1).gateway, &["ip", "-6", "rule"]));
    println!("{}", told(&lab.gateways.site(1).gateway, &["ip", "route", "show", "table", "all"]));
    println!("{}", told(&lab.gateways.site(1).gateway, &["ip", "-d", "link"]));
    println!("{}", told(&lab.gateways.site(1).gateway, &["ss", "-xlp"]));
}

#[test]
fn experiment_second_with_other_directories() {
    let Some(mut lab) = running("second_other", Plan::default()) else { return };
    let gw = lab.gateways.site(1).gateway.name().to_owned();
    println!("{gw}");
    let before = told(&lab.gateways.site(1).gateway, &["nft", "-s", "list", "ruleset"]);
    let file = lab.gateways.file(1);
    let other = file.beside("other.toml");
    let mut text = file.text();
    for directory in [file.run_dir(), file.state_dir()] {
        let name = directory.display().to_string();
        text = text.replace(&format!("\"{name}\""), &format!("\"{name}2\""));
    }
    text = text.replace("action", "#");
    // no policies at all
    let at = text.find("[[policy]]").unwrap();
    let text2 = format!("{}", &text[..at]);
    std::fs::write(&other, text2).unwrap();
    let mut command = lab.gateways.site(1).gateway.command(&lab.gateways.programs.lockgated);
    command.arg("--config").arg(&other);
    let finished = netlab::process::run(command, Duration::from_secs(20)).unwrap();
    println!("{} {}", finished.stdout, finished.stderr);
    let now = told(&lab.gateways.site(1).gateway, &["nft", "-s", "list", "ruleset"]);
    println!("same at once: {}", now == before);
    pause(500);
    let now = told(&lab.gateways.site(1).gateway, &["nft", "-s", "list", "ruleset"]);
    println!("same later: {}", now == before);
    println!("{}", lab.gateways.daemon_mut(1).unwrap().log());
    // Now with the daemon dead.
    lab.gateways.kill(1);
    let mut command = lab.gateways.site(1).gateway.command(&lab.gateways.programs.lockgated);
    let _claim = claim(&lab.gateways.site(1).gateway, "wan");
    command.arg("--config").arg(&other);
    let finished = netlab::process::run(command, Duration::from_secs(20)).unwrap();
    println!("{} {}", finished.stdout, finished.stderr);
    let now = told(&lab.gateways.site(1).gateway, &["nft", "-s", "list", "ruleset"]);
    println!("same after a start that failed: {}", now == before);
    println!("{now}");
}

#[test]
fn experiment_many_policies() {
    let Some(mut lab) = running("many", Plan::default()) else { return };
    for n in [1000, 5000, 20000] {
        let file = lab.gateways.file(1);
        let mut text = file.text();
        for i in 0..n {
            text += &format!(
                "\n[[policy]]\nname = \"p{i}\"\naction = \"discard\"\nlocal = [\"any\"]\nremote = [\"172.{}.{}.{}/32\"]\nprotocol = \"udp\"\nremote_ports = [\"53\"]\npriority = 5\n",
                16 + i / 65536,
                i / 256 % 256,
                i % 256
            );
        }
        let changed = file.beside("changed.toml");
        std::fs::write(&changed, text).unwrap();
        let started = std::time::Instant::now();
        let words = ["apply", "-f", changed.to_str().unwrap()];
        let mut c = lab.gateways.daemon(1).unwrap().command(&words);
        let o = netlab::process::run(
            {
                c.env("X", "1");
                c
            },
            Duration::from_secs(120),
        )
        .unwrap();
        println!(
            "{n}: {:?} {} {}",
            started.elapsed(),
            o.stdout.chars().take(300).collect::<String>(),
            o.stderr
        );
        let started = std::time::Instant::now();
        let _ = lab.gateways.daemon(1).unwrap().ask(&["show", "status"]);
        println!("{n}: then status {:?}", started.elapsed());
        let started = std::time::Instant::now();
        lab.gateways.site(1).gateway.ip("addr add 10.1.0.77/32 dev lan").unwrap();
        let _ = lab.gateways.daemon(1).unwrap().ask(&["show", "status"]);
        pause(50);
        let _ = lab.gateways.daemon(1).unwrap().ask(&["show", "status"]);
        println!("{n}: address change {:?}", started.elapsed());
        lab.gateways.site(1).gateway.ip("addr del 10.1.0.77/32 dev lan").unwrap();
        let started = std::time::Instant::now();
        let _ =
            told(&lab.gateways.site(1).gateway, &["nft", "delete", "table", "inet", "lockgate"]);
        lab.gateways
            .daemon_mut(1)
            .unwrap()
            .wait_for("guard_restored", Duration::from_secs(30))
            .unwrap();
        println!("{n}: guard restored {:?}", started.elapsed());
    }
    lab.flows_again();
    let started = std::time::Instant::now();
    lab.gateways.kill(1);
    println!("killed {:?}", started.elapsed());
}
