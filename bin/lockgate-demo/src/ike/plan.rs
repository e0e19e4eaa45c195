//! Configurations: peers of Lockgate's that get keys from IKE, and charon's connections.

use std::fmt::Write as _;

use netlab::configuration::PeerEntry;

/// Lockgate's suite, and charon's proposal of it.
const SUITE: &str = "aes-256-gcm";
const PROPOSAL: &str = "aes256gcm16-esn";
/// Name of charon's CHILD_SA for the networks of both sites.
pub(super) const CHILD: &str = "net";
/// Name of charon's connection.
pub(super) const CONNECTION: &str = "gw";

/// One end of the tunnel, as its charon sees it.
#[derive(Clone, Debug)]
pub(super) struct End {
    /// Names of the gateways, ours and the peer's.
    pub(super) names: [String; 2],
    /// Their addresses.
    pub(super) addresses: [String; 2],
    /// Networks behind them.
    pub(super) networks: [Vec<String>; 2],
    /// Proposal of ESP.
    pub(super) proposal: &'static str,
    /// Further lines of charon's connection.
    pub(super) connection: &'static str,
}

/// A way in which gateways prove who they are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Proof {
    /// A pre-shared key.
    Secret(String),
    /// A certificate of a common authority.
    Certificate,
}

/// A further CHILD_SA of a connection, with a peer and a policy of its own in Lockgate.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Further {
    /// Its name.
    pub(super) name: String,
    /// Networks, ours and the peer's.
    pub(super) networks: [String; 2],
}

impl End {
    /// The end of a peer's entry.
    pub(super) fn new(name: &str, peer: &PeerEntry) -> End {
        End {
            names: [name.to_owned(), peer.name.clone()],
            addresses: [peer.local.clone(), peer.remote.clone()],
            networks: [peer.ours.clone(), peer.theirs.clone()],
            proposal: PROPOSAL,
            connection: "mobike = no",
        }
    }

    /// The peer and its policy in Lockgate's configuration; `more` are further lines of the peer.
    pub(super) fn lockgate(&self, more: &str) -> String {
        let networks = self.networks.each_ref().map(|networks| format!("{networks:?}"));
        self.section(&self.names[1], &networks, more)
    }

    /// A peer of its own, and its policy, for a further CHILD_SA.
    pub(super) fn lockgate_further(&self, further: &Further) -> String {
        let networks = further.networks.each_ref().map(|network| format!("[{network:?}]"));
        self.section(&further.name, &networks, "")
    }

    fn section(&self, name: &str, [ours, theirs]: &[String; 2], more: &str) -> String {
        let [local, remote] = &self.addresses;
        format!(
            "\n[peer.{name}]\nlocal = \"{local}\"\nremote = \"{remote}\"\nkeys = \"ike\"\n\
             suite = \"{SUITE}\"\n{more}\n[[policy]]\nname = \"to-{name}\"\npeer = \"{name}\"\n\
             local = {ours}\nremote = {theirs}\npriority = 100\n"
        )
    }

    /// The `swanctl.conf` of this end's charon.
    pub(super) fn swanctl(&self, proof: &Proof, further: &[Further]) -> String {
        let ([local, remote], [own, peer]) = (&self.addresses, &self.names);
        let (local_auth, remote_auth, secrets) = match proof {
            Proof::Secret(secret) => (
                format!("auth = psk\n            id = {local}"),
                format!("auth = psk\n            id = {remote}"),
                format!(
                    "secrets {{\n    ike-{peer} {{\n        id-a = {local}\n        id-b = {remote}\
                     \n        secret = {secret}\n    }}\n}}\n"
                ),
            ),
            Proof::Certificate => (
                format!("auth = pubkey\n            certs = {own}.pem\n            id = {own}"),
                format!("auth = pubkey\n            id = {peer}"),
                String::new(),
            ),
        };
        let more = self.connection;
        let [ours, theirs] = self.networks.each_ref().map(|networks| networks.join(","));
        let mut children = self.child(CHILD, [&ours, &theirs], "start_action = trap");
        for Further { name, networks: [ours, theirs] } in further {
            children += &self.child(name, [ours, theirs], "");
        }
        format!(
            "connections {{
    {CONNECTION} {{
        version = 2
        local_addrs = {local}
        remote_addrs = {remote}
        {more}
        proposals = aes256-sha256-x25519
        local {{
            {local_auth}
        }}
        remote {{
            {remote_auth}
        }}
        children {{
{children}        }}
    }}
}}
{secrets}"
        )
    }

    fn child(&self, name: &str, [ours, theirs]: [&str; 2], more: &str) -> String {
        let mut text = String::new();
        let proposal = self.proposal;
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "            {name} {{
                local_ts = {ours}
                remote_ts = {theirs}
                esp_proposals = {proposal}
                {more}
            }}"
        );
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_child_has_a_section_of_its_own_and_only_a_shared_secret_is_written() {
        let text = |text: &str| text.to_owned();
        let end = End {
            names: ["gw-a", "gw-b"].map(text),
            addresses: ["192.0.2.1", "192.0.2.2"].map(text),
            networks: [vec![text("10.1.0.0/16")], vec![text("10.2.0.0/16")]],
            proposal: PROPOSAL,
            connection: "",
        };
        let further =
            Further { name: text("c1"), networks: ["10.3.0.0/28", "10.4.0.0/28"].map(text) };
        let shared = end.swanctl(&Proof::Secret(text("long")), &[]);
        assert!(shared.contains("secret = long") && !shared.contains("certs"), "{shared}");
        let certified = end.swanctl(&Proof::Certificate, std::slice::from_ref(&further));
        assert!(certified.contains("certs = gw-a.pem") && certified.contains("id = gw-b"));
        assert!(!certified.contains("secret"), "{certified}");
        assert_eq!(certified.matches("esp_proposals").count(), 2);
        let section = end.lockgate_further(&further);
        assert!(section.contains("[peer.c1]\n") && section.contains("[\"10.3.0.0/28\"]"));
    }
}
