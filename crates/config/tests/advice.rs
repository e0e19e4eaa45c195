//! Advice that fits the place where a mistake stands.

use config::{Location, parse, text_of};

/// A gateway with one more piece of configuration.
fn with(more: &str) -> String {
    format!(
        "[node]\nname = \"n\"\n[port.wan]\nnetdev = \"eth1\"\nside = \"unprotected\"\n\
         [port.lan]\nnetdev = \"eth2\"\nside = \"protected\"\n{more}"
    )
}

/// All that is told of a text, errors or warnings.
fn told(more: &str) -> String {
    match parse(&with(more), "gw.toml") {
        Ok(parsed) => config::render(&parsed.warnings),
        Err(errors) => errors.to_string(),
    }
}

fn peer(keys: &str) -> String {
    format!(
        "[peer.p]\nlocal = \"192.0.2.1\"\nremote = \"192.0.2.2\"\n{keys}\n\
         suite = \"aes-256-gcm\"\n"
    )
}

#[test]
fn a_list_that_is_needed_is_never_to_be_left_out() {
    let ike = "peers = [\"any\"]\nlocal = [\"any\"]\nremote = [\"any\"]\n";
    for (more, message, advice) in [
        (
            "[card.c]\nkind = \"emulated\"\nsocket = \"/run/c\"\nports = []\n".to_owned(),
            "`ports` is an empty list",
            "name the ports that are on the card",
        ),
        (format!("[ike]\nends = []\n{ike}"), "`ends` is an empty list", "name the addresses"),
    ] {
        let told = told(&more);
        assert!(told.contains(message) && told.contains(advice), "{more}: {told}");
        assert!(!told.contains("to mean any"), "{more}: {told}");
    }
}

#[test]
fn ports_of_ike_without_a_protocol_fall_to_no_other_section() {
    let ike = "[ike]\nends = [\"192.0.2.1\"]\npeers = [\"any\"]\nlocal = [\"any\"]\n\
               remote = [\"any\"]\nlocal_ports = [\"443\"]\n";
    let told = told(ike);
    assert!(told.contains("are not within these bounds: name the protocol"), "{told}");
    assert!(!told.contains("next section"), "{told}");
}

#[test]
fn short_numbers_are_told_for_the_keys_that_the_peer_has() {
    let of_api = told(&peer("keys = \"api\""));
    assert!(of_api.contains("by when the program that puts its keys must have put"), "{of_api}");
    assert!(of_api.contains("esn = true") && !of_api.contains("manual keys"), "{of_api}");
    let of_file = told(&peer("keys = \"file:k\"\nmanual = \"laboratory\""));
    assert!(of_file.contains("manual keys are not renewed"), "{of_file}");
    assert!(!told(&peer("keys = \"ike\"")).contains("ESN"));
}

#[test]
fn a_text_that_is_no_utf_8_has_the_place_of_its_first_wrong_byte() {
    let text = b"[node]\n# \xc3\xbc B\xfcro\n";
    let errors = text_of(&text[..], "gw.toml").unwrap_err();
    let place = Location { file: "gw.toml".into(), line: 2, column: 6 };
    assert_eq!(errors.problems[0].place, place);
    assert!(errors.to_string().starts_with("gw.toml:2:6: error: is not UTF-8 text"), "{errors}");
    assert!(errors.to_string().contains("save the file as UTF-8"));
}

#[test]
fn a_refusal_for_who_applies_nothing_does_not_speak_of_it() {
    let errors = parse("x = 1\n", "gw.toml").unwrap_err();
    assert!(errors.to_string().ends_with("; nothing was applied"));
    let plain = format!("{errors:#}");
    assert!(plain.contains(" error") && !plain.contains("applied"), "{plain}");
}

#[test]
fn a_socket_of_the_wrong_type_is_one_mistake() {
    let card = |socket: &str| format!("[card.c]\nkind = \"emulated\"\n{socket}ports = [\"wan\"]\n");
    let wrong = told(&card("socket = 5\n"));
    assert!(wrong.contains("`socket` must be") && wrong.contains("1 error"), "{wrong}");
    assert!(told(&card("")).contains("the card has no `socket`"));
}
