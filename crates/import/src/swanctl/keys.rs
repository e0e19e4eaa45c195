//! Keys of swanctl.conf: those that there are, and those that have no place here.

use crate::problem::Fate;

use super::values::{number, yes_or_no};

/// Sections at the top that are charon's alone.
pub(super) const TOP: [&str; 4] = ["connections", "secrets", "pools", "authorities"];

/// Keys of a connection.
pub(super) const CONNECTION: [&str; 30] = [
    "version",
    "local_addrs",
    "remote_addrs",
    "local_port",
    "remote_port",
    "proposals",
    "vips",
    "aggressive",
    "pull",
    "dscp",
    "encap",
    "mobike",
    "dpd_delay",
    "dpd_timeout",
    "fragmentation",
    "childless",
    "send_certreq",
    "send_cert",
    "ppk_id",
    "ppk_required",
    "keyingtries",
    "unique",
    "reauth_time",
    "rekey_time",
    "over_time",
    "rand_time",
    "pools",
    "if_id_in",
    "if_id_out",
    "mediation",
];

/// Keys of a connection that few have.
pub(super) const MEDIATED: [&str; 2] = ["mediated_by", "mediation_peer"];

/// Keys of a child.
pub(super) const CHILD: [&str; 43] = [
    "ah_proposals",
    "esp_proposals",
    "sha256_96",
    "local_ts",
    "remote_ts",
    "rekey_time",
    "life_time",
    "rand_time",
    "rekey_bytes",
    "life_bytes",
    "rand_bytes",
    "rekey_packets",
    "life_packets",
    "rand_packets",
    "updown",
    "hostaccess",
    "mode",
    "policies",
    "policies_fwd_out",
    "dpd_action",
    "ipcomp",
    "inactivity",
    "reqid",
    "priority",
    "interface",
    "mark_in",
    "mark_in_sa",
    "mark_out",
    "set_mark_in",
    "set_mark_out",
    "if_id_in",
    "if_id_out",
    "label",
    "label_mode",
    "tfc_padding",
    "replay_window",
    "hw_offload",
    "copy_df",
    "copy_ecn",
    "copy_dscp",
    "start_action",
    "close_action",
    "per_cpu_sas",
];

/// A key that has no place here if its value is not the usual one.
pub(super) struct Noted {
    pub(super) key: &'static str,
    pub(super) is_usual: fn(&str) -> bool,
    pub(super) fate: Fate,
    pub(super) reason: &'static str,
    pub(super) advice: &'static str,
}

/// Keys of a child without which the child is taken.
pub(super) const NOTED: [Noted; 9] = [
    Noted {
        key: "ipcomp",
        is_usual: is_no,
        fate: Fate::Refused,
        reason: "Lockgate has no IPComp",
        advice: "write ipcomp = no at both gateways",
    },
    Noted {
        key: "sha256_96",
        is_usual: is_no,
        fate: Fate::Refused,
        reason: "HMAC-SHA-256 has an ICV of 128 bits here (RFC 4868 §2.3)",
        advice: "write sha256_96 = no at both gateways, or choose AES-GCM",
    },
    Noted {
        key: "policies",
        is_usual: is_yes,
        fate: Fate::Differs,
        reason: "charon was to make no policy; Lockgate has one",
        advice: "remove the policy if its packets are not to be protected",
    },
    Noted {
        key: "hw_offload",
        is_usual: is_no,
        fate: Fate::Left,
        reason: "Lockgate's configuration says it: [card.NAME], and offload in [peer.NAME]",
        advice: "leave hw_offload out: an SA with hw_offload = yes is refused",
    },
    Noted {
        key: "tfc_padding",
        is_usual: is_zero,
        fate: Fate::Refused,
        reason: "Lockgate pads no packets to hide their length",
        advice: "write tfc_padding = 0: an SA with it is refused",
    },
    Noted {
        key: "copy_ecn",
        is_usual: is_yes,
        fate: Fate::Differs,
        reason: "Lockgate always copies ECN (RFC 6040)",
        advice: "none",
    },
    Noted {
        key: "updown",
        is_usual: str::is_empty,
        fate: Fate::Differs,
        reason: "charon still runs the script, but rules of Linux's firewall do not see what \
                 Lockgate carries",
        advice: "write such rules as a security group of a port",
    },
    Noted {
        key: "per_cpu_sas",
        is_usual: is_no,
        fate: Fate::Left,
        reason: "strongSwan 5.9.8 and 6.0.1, for which Lockgate has a plugin, have no such key",
        advice: "remove it",
    },
    Noted {
        key: "hostaccess",
        is_usual: is_no,
        fate: Fate::Left,
        reason: "the host's own traffic is a matter of policies and of allow_host",
        advice: "write policies for it",
    },
];

/// Keys with which a child is not taken: its policies would hold for other packets.
pub(super) const NARROWING: [&str; 8] = [
    "mark_in",
    "mark_out",
    "set_mark_in",
    "set_mark_out",
    "if_id_in",
    "if_id_out",
    "interface",
    "label",
];

fn is_no(text: &str) -> bool {
    yes_or_no(text) == Some(false)
}

fn is_yes(text: &str) -> bool {
    yes_or_no(text) == Some(true)
}

/// Returns whether a value is zero, whatever its mask.
pub(super) fn is_zero(text: &str) -> bool {
    number(text.split('/').next().unwrap_or(text)) == Some(0)
}
