//! The configuration that a scene applies: groups, their rules, and the ports that list them.

use std::fmt::Write;

/// Connections that the first gateway has room for: few, so that a flood meets its bounds.
pub(super) const MOST_CONNECTIONS: u32 = 8192;

/// Groups and the ports of the first gateway that list them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Groups {
    lan_in: Vec<&'static str>,
    lan_out: Vec<&'static str>,
    dmz_in: Vec<&'static str>,
    dmz_out: Vec<&'static str>,
    /// Sets, groups and rules as they stand in the file.
    text: String,
}

/// The mode of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mode {
    Enforce,
    Audit,
}

impl Groups {
    /// No groups: everything passes.
    pub(super) fn none() -> Groups {
        Groups::default()
    }

    /// Lists groups for what comes by port `lan`.
    pub(super) fn lan_in(mut self, groups: &[&'static str]) -> Groups {
        self.lan_in = groups.to_vec();
        self
    }

    /// Lists groups for what leaves by port `lan`.
    pub(super) fn lan_out(mut self, groups: &[&'static str]) -> Groups {
        self.lan_out = groups.to_vec();
        self
    }

    /// Lists groups for what comes by port `dmz`.
    pub(super) fn dmz_in(mut self, groups: &[&'static str]) -> Groups {
        self.dmz_in = groups.to_vec();
        self
    }

    /// Lists groups for what leaves by port `dmz`.
    pub(super) fn dmz_out(mut self, groups: &[&'static str]) -> Groups {
        self.dmz_out = groups.to_vec();
        self
    }

    /// Adds a group; the rules that follow belong to it, in their order.
    pub(super) fn group(mut self, name: &str, mode: Mode, rules: &[Rule]) -> Groups {
        self.text += &group_text(name, mode, rules);
        self
    }

    /// Adds a set whose members are in a file.
    pub(super) fn set_of_file(mut self, name: &str, file: &str) -> Groups {
        // Writing into a text cannot fail.
        let _ = write!(self.text, "\n[set.{name}]\nfile = \"{file}\"\n");
        self
    }

    /// Further lines of `[port.lan]`.
    pub(super) fn lan_lines(&self) -> String {
        format!("groups_in = {:?}\ngroups_out = {:?}\n", self.lan_in, self.lan_out)
    }

    /// Section `[port.dmz]`, and the groups.
    pub(super) fn lines(&self) -> String {
        let Groups { dmz_in, dmz_out, text, .. } = self;
        format!(
            "
[port.dmz]
netdev = \"dmz\"
side = \"protected\"
groups_in = {dmz_in:?}
groups_out = {dmz_out:?}

[connections]
max = \"{MOST_CONNECTIONS}\"
{text}"
        )
    }
}

/// A group and its rules as they stand in a file.
pub(super) fn group_text(name: &str, mode: Mode, rules: &[Rule]) -> String {
    let mode = match mode {
        Mode::Enforce => "enforce",
        Mode::Audit => "audit",
    };
    let rules: String = rules.iter().map(|rule| rule.text(name)).collect();
    format!("\n[group.{name}]\nmode = \"{mode}\"\n{rules}")
}

/// A rule for all sources and, unless it names others, all destinations.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Rule {
    name: String,
    action: &'static str,
    from: String,
    to: String,
    /// Lines for protocol, ports and types.
    what: String,
}

impl Rule {
    /// A rule that permits what `what` describes.
    pub(super) fn permit(name: impl Into<String>, what: impl Into<String>) -> Rule {
        let any = || "any".to_owned();
        Rule { name: name.into(), action: "permit", from: any(), to: any(), what: what.into() }
    }

    /// A rule that denies what `what` describes.
    pub(super) fn deny(name: impl Into<String>, what: impl Into<String>) -> Rule {
        Rule { action: "deny", ..Rule::permit(name, what) }
    }

    /// Makes it a rule that reflects: it lets the answers back, too.
    pub(super) fn reflect(self) -> Rule {
        Rule { action: "reflect", ..self }
    }

    /// Names the sources.
    pub(super) fn from(self, from: impl Into<String>) -> Rule {
        Rule { from: from.into(), ..self }
    }

    /// Names the destinations.
    pub(super) fn to(self, to: impl Into<String>) -> Rule {
        Rule { to: to.into(), ..self }
    }

    fn text(&self, group: &str) -> String {
        let Rule { name, action, from, to, what } = self;
        format!(
            "
[[rule]]
group = \"{group}\"
name = \"{name}\"
action = \"{action}\"
from = [\"{from}\"]
to = [\"{to}\"]
{what}
"
        )
    }
}

/// TCP to a port.
pub(super) fn tcp_to(port: u16) -> String {
    format!("protocol = \"tcp\"\nto_ports = [\"{port}\"]")
}

/// Permits TCP to port 80.
pub(super) fn http() -> Rule {
    Rule::permit("http", tcp_to(80))
}

/// Permits echo requests of both families.
pub(super) fn ping() -> [Rule; 2] {
    [
        Rule::permit("ping", "protocol = \"icmp\"\nicmp = [\"8\"]"),
        Rule::permit("ping6", "protocol = \"icmpv6\"\nicmp = [\"128\"]"),
    ]
}

/// Permits echo replies of both families.
pub(super) fn ping_answers() -> [Rule; 2] {
    [
        Rule::permit("ping", "protocol = \"icmp\"\nicmp = [\"0\"]"),
        Rule::permit("ping6", "protocol = \"icmpv6\"\nicmp = [\"129\"]"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_are_a_configuration_that_is_accepted() {
        let rules = [Rule::deny("no-http", tcp_to(80)).to("10.3.0.0/16"), http().reflect()];
        let groups = Groups::none()
            .lan_in(&["web"])
            .lan_out(&["answers"])
            .dmz_in(&["answers"])
            .dmz_out(&["web"])
            .group("web", Mode::Audit, &[rules.as_slice(), &ping()].concat())
            .group("answers", Mode::Enforce, &ping_answers());
        let lan = "[node]\nname = \"gw-a\"\n[port.lan]\nnetdev = \"lan\"\nside = \"protected\"\n";
        let text = format!("{lan}{}{}", groups.lan_lines(), groups.lines());
        if let Err(errors) = config::parse(&text, "demo.toml") {
            panic!("{errors}\n{text}");
        }
    }
}
