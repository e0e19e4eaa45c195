//! The dialogue, and the use of its answers.

use super::machine::WayOut;
use super::*;

fn machine() -> Machine {
    let interface = |name: &str, address: &str, length, way_out| Interface {
        name: name.to_owned(),
        addresses: vec![(Address::from(address.parse::<IpAddr>().unwrap()), length)],
        way_out,
    };
    Machine {
        name: Some("paris".to_owned()),
        interfaces: vec![
            interface("eth0", "192.0.2.1", 24, WayOut::Default),
            interface("eth1", "10.1.0.1", 24, WayOut::None),
        ],
    }
}

/// Answers typed, and what the terminal then shows.
fn ask(typed: &str, given: GivenAnswers, machine: &Machine) -> (Result<Answers, Failure>, String) {
    let mut output = Vec::new();
    let mut input = typed.as_bytes();
    let answers =
        Dialogue::new(&mut input, &mut output, machine).answers("paris".to_owned(), given);
    (answers, String::from_utf8(output).unwrap())
}

#[test]
fn enter_takes_what_the_machine_shows() {
    let (answers, shown) =
        ask("\n\n\nberlin 198.51.100.7\n10.2.0.0/16\n", GivenAnswers::default(), &machine());
    let answers = answers.unwrap();
    assert_eq!((answers.lan.as_str(), answers.wan.as_str()), ("eth1", "eth0"));
    assert_eq!(joined(&answers.networks, " "), "10.1.0.0/24");
    assert_eq!(answers.address, IpAddr::from([192, 0, 2, 1]));
    assert_eq!(
        (answers.peer.as_str(), answers.peer_address.to_string().as_str()),
        ("berlin", "198.51.100.7")
    );
    for words in [
        "eth0            192.0.2.1/24, default route",
        "[eth1]",
        "[10.1.0.0/24]",
        "[eth0 192.0.2.1]",
        "5/5 ",
    ] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
}

#[test]
fn a_wrong_answer_is_explained_and_asked_again() {
    let typed = "eth 1\neth1\n10.1.0.1/16\n10.1.0.0/16\neth1 192.0.2.1\neth0\n\
                 berlin vpn.example.com\n198.51.100.7\n10.1.2.0/24\n10.2.0.0/16\n";
    let (answers, shown) = ask(typed, GivenAnswers::default(), &machine());
    let answers = answers.unwrap();
    assert_eq!(answers.peer, "peer");
    assert_eq!(joined(&answers.peer_networks, " "), "10.2.0.0/16");
    for words in [
        "cannot be an interface",
        "the network is 10.1.0.0/16",
        "need two interfaces",
        "names are not resolved",
        "overlaps 10.1.0.0/16",
    ] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    for number in 1..=5 {
        assert_eq!(shown.matches(&format!("{number}/5 ")).count(), 2, "{shown}");
    }
}

#[test]
fn an_option_answers_its_question() {
    let given = GivenAnswers {
        lan: Some("eth1".to_owned()),
        peer: Some("berlin".to_owned()),
        peer_address: Some([198, 51, 100, 7].into()),
        ..GivenAnswers::default()
    };
    let (answers, shown) = ask("\n\n10.2.0.0/16\n", given, &machine());
    assert_eq!(answers.unwrap().peer, "berlin");
    assert!(!shown.contains("1/5 ") && !shown.contains("4/5 ") && shown.contains("2/5 "));
}

#[test]
fn a_machine_without_interfaces_is_asked_for_everything() {
    let typed = "\neth1\n\n10.1.0.0/16\neth0\neth0 192.0.2.1\n198.51.100.7\n10.2.0.0/16\n";
    let (answers, shown) = ask(typed, GivenAnswers::default(), &Machine::default());
    answers.unwrap();
    assert!(shown.contains("shows no interfaces") && shown.contains("an answer is needed"));
    assert!(shown.contains("eth0 has no address that could be guessed"), "{shown}");
}

#[test]
fn an_input_that_ends_is_no_answer() {
    for typed in ["", "\n\n", "eth1\n10.1.0.0/16\nnonsense and more\n"] {
        let (answers, _) = ask(typed, GivenAnswers::default(), &machine());
        assert!(matches!(answers, Err(Failure::Usage(Usage::DialogueEnded))));
    }
}

#[test]
fn the_outer_address_is_of_the_peers_family() {
    let mut machine = machine();
    let v6: IpAddr = "2001:db8:ffff::1".parse().unwrap();
    machine.interfaces[0].addresses.push((v6.into(), 64));
    let given = |peer: &str| GivenAnswers {
        wan: Some("eth0".to_owned()),
        peer_address: Some(peer.parse().unwrap()),
        ..GivenAnswers::default()
    };
    assert_eq!(own_address(&given("2001:db8:ffff::2"), &machine), Some(v6));
    assert_eq!(own_address(&given("198.51.100.7"), &machine), Some([192, 0, 2, 1].into()));
    machine.interfaces.clear();
    assert_eq!(own_address(&given("198.51.100.7"), &machine), None);
}
