//! A first tunnel, as a newcomer makes it: `lockgate init`, the commands that it names, a ping.

use std::time::Duration;

use net::AGAIN;
use netlab::capture::{Capture, Scope, Tally};
use netlab::ping::Ping;
use netlab::process::Running;
use netlab::sites::{BRIDGE, Plan};
use netlab::{LabError, Machine};

/// Time for a command, and for a daemon to be ready.
const PATIENCE: Duration = Duration::from_secs(60);
/// Path of the configuration of an installed gateway.
const INSTALLED: &str = "/etc/lockgate/lockgate.toml";

#[test]
fn what_init_writes_joins_two_networks() {
    let Some(lab) = net::lab("init", Plan::default()) else { return };
    let (sites, programs) = (&lab.gateways.sites, &lab.gateways.programs);
    let directory = sites.laboratory.directory();
    let machines = [1, 2].map(|number| {
        let own = directory.join(format!("machine-{number}"));
        std::fs::create_dir(&own).unwrap();
        Machine::new(&sites.site(number).gateway, &own).unwrap()
    });
    let (a, b) = (sites.site(1), sites.site(2));

    // The outer address of this gateway is not given: the machine shows it.
    let lockgate = programs.lockgate.display();
    let init = format!(
        "{lockgate} init --name paris --lan lan --network {} --wan wan --peer berlin \
         --peer-address {} --peer-network {}",
        a.networks().join(","),
        b.wan_v4(),
        b.networks().join(","),
    );
    let says = machines[0].shell(directory, &init, PATIENCE).unwrap().success().unwrap();
    let text = std::fs::read_to_string(directory.join("paris-berlin/paris.toml")).unwrap();
    assert!(text.contains("local = \"192.0.2.1\"") && text.contains("\"10.1.0.1/24\""), "{text}");

    // The commands that it names, but for `scp`: both machines see the directory.
    let copies = |from: &str| {
        let named = says.lines().map(str::trim).filter(|line| line.starts_with(from));
        named.map(str::to_owned).collect::<Vec<_>>()
    };
    let (installs, transfers) = (copies("install "), copies("scp "));
    assert_eq!((installs.len(), transfers.len()), (2, 2), "{says}");
    let to = format!("root@{}:", b.wan_v4());
    for (machine, commands) in machines.iter().zip([installs, transfers]) {
        for command in commands {
            let local = command.replace("scp ", "cp -p ").replace(&to, "");
            machine.shell(directory, &local, PATIENCE).unwrap().success().unwrap();
        }
        let check = [&*programs.lockgate.to_string_lossy(), "check", INSTALLED];
        let checked = machine.run(&check, PATIENCE).unwrap();
        assert!(checked.status.success() && checked.stdout.contains("; 0 warnings"), "{checked:?}");
    }

    let to = (directory, "first");
    let capture = Capture::start(&sites.wire, BRIDGE, Scope::Heads, to).unwrap();
    let daemons = machines.each_ref().map(|machine| {
        let mut command = machine.command(&programs.lockgated);
        command.args(["--config", INSTALLED]);
        let mut daemon = Running::start(command).unwrap();
        let is_ready = |running: &Running| running.stderr().contains(" started: ");
        (daemon.wait_until("it to start", PATIENCE, is_ready), daemon)
    });
    for (ready, _) in &daemons {
        match ready {
            Ok(()) => {}
            Err(LabError::Ended { output, .. }) if net::lacks_a_feature(output) => {
                println!("SKIPPED: init: {}", output.trim().replace('\n', " | "));
                return;
            }
            Err(error) => panic!("{error}"),
        }
    }
    let end = std::time::Instant::now() + 4 * AGAIN;
    for address in [b.host_v4(), b.host_v6()] {
        loop {
            let answers = Ping::new(&address, 5).run(&a.host).unwrap();
            if answers.all_answered() {
                break;
            }
            let logs = daemons.each_ref().map(|(_, daemon)| daemon.stderr()).concat();
            assert!(std::time::Instant::now() < end, "{}\n{logs}", answers.text);
        }
    }
    let wire = Tally::of(&capture.stop().unwrap()).unwrap();
    assert!(wire.esp >= 20, "{wire:?}");
    assert_eq!(wire.clear, 0, "{:?}", wire.clear_examples);
}
