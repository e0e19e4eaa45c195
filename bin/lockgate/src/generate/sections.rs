//! Sections of manual pages that the argument parser does not know: examples, exit status, files.

/// A term and what it means: an example and what it does, a file and what it holds.
pub(super) type Described = (&'static str, &'static str);

/// Sections of a page.
#[derive(Clone, Copy)]
pub(super) struct Sections {
    /// Commands, each with what it does. Those at the end of `--help` follow them.
    pub(super) examples: &'static [Described],
    pub(super) exit_status: &'static [Described],
    pub(super) files: &'static [Described],
    /// Set if the command has `--json`, so that its errors can be JSON too.
    pub(super) has_json: bool,
}

/// Returns the sections of a page, by its name without the section: `lockgate-show`.
///
/// # Panics
/// If a command has no sections: a new command needs them.
pub(super) fn sections(name: &str) -> Sections {
    let found = PAGES.iter().find(|(page, _)| *page == name);
    found.unwrap_or_else(|| panic!("generate/sections.rs has nothing for {name}")).1
}

const SOCKET: Described = (
    "/run/lockgate/api.sock",
    "Socket of the daemon. LOCKGATE_SOCKET in the environment or --socket names another.",
);
const CONFIGURATION: Described =
    ("/etc/lockgate/lockgate.toml", "Configuration of the daemon that the package starts.");
const KEYS: Described =
    ("/etc/lockgate/*.keys", "Keys of the peers, readable by root alone; keys_dir names a folder.");
const REVISIONS: Described =
    ("/var/lib/lockgate", "Revisions of the configuration and reservations of sequence numbers.");

const USUAL: &[Described] = &[
    ("0", "It succeeded."),
    ("1", "It failed, or the daemon refused: the message says why."),
    ("2", "The command line is wrong, or names something that does not exist."),
];
const CHECKED: &[Described] = &[
    ("0", "The configuration can be used. There may be warnings."),
    ("1", "The configuration or a key file is wrong, or cannot be read."),
    ("2", "The command line is wrong."),
];
const IMPORTED: &[Described] = &[
    ("0", "The configuration was written. What is not in it stands on standard error."),
    ("1", "The text has mistakes, or a file cannot be read or written; nothing was written."),
    ("2", "The command line is wrong."),
];
const OUTPUT: Described =
    ("--output FILE", "The configuration; a file that is there is not replaced.");
const IMPORT_FILES: &[Described] =
    &[OUTPUT, ("--keys FILE", "The keys, mode 0600; a file that is there is not replaced.")];
const COMPARED: &[Described] = &[
    ("0", "Both mean the same."),
    ("1", "They differ."),
    ("2", "They cannot be compared: the message says why."),
];
const PROBED: &[Described] = &[
    ("0", "Nothing is missing that Lockgate needs."),
    ("1", "Something is missing; the answer says how to get it."),
    ("2", "The command line is wrong."),
];
const OF_A_PROGRAM: &[Described] = &[
    ("0", "The program succeeded."),
    ("1", "The program is not installed, or failed; a check of it failed."),
    ("2", "The command line is wrong."),
];

/// Sections of a command that asks the daemon.
const fn live(examples: &'static [Described]) -> Sections {
    Sections { examples, exit_status: USUAL, files: &[SOCKET], has_json: true }
}

/// Sections of a command that changes what the daemon runs.
const fn change(examples: &'static [Described]) -> Sections {
    Sections { files: &[SOCKET, CONFIGURATION, KEYS, REVISIONS], ..live(examples) }
}

/// Sections of a command that runs another program.
const fn other(examples: &'static [Described], files: &'static [Described]) -> Sections {
    Sections { examples, exit_status: OF_A_PROGRAM, files, has_json: false }
}

const PAGES: &[(&str, Sections)] = &[
    (
        "lockgate",
        change(&[
            ("lockgate probe", "Say whether this machine can be a gateway"),
            ("lockgate init", "Write the files of a first tunnel, after five questions"),
            ("lockgate", "Show the running gateway on one screen"),
            ("lockgate show counters", "Show why packets are dropped"),
        ]),
    ),
    (
        "lockgate-check",
        Sections {
            exit_status: CHECKED,
            files: &[CONFIGURATION, KEYS],
            ..live(&[
                ("lockgate check /etc/lockgate/lockgate.toml", "Check what the daemon starts with"),
                ("lockgate check gw-a.toml --effective", "Print every default too"),
                ("lockgate check - --keys-dir keys", "Check what another program writes"),
            ])
        },
    ),
    (
        "lockgate-init",
        Sections {
            files: &[
                ("NAME-PEER/", "A new folder with the four files of the tunnel; --out-dir."),
                CONFIGURATION,
                KEYS,
            ],
            ..live(&[("lockgate init", "Ask five questions")])
        },
    ),
    (
        "lockgate-import",
        Sections {
            exit_status: IMPORTED,
            files: IMPORT_FILES,
            ..live(&[
                (
                    "lockgate import xfrm --state state.txt --policy policy.txt --output gw-a.toml",
                    "Import what `ip xfrm state` and `ip xfrm policy` printed",
                ),
                ("lockgate import vpp startup.conf", "Import what VPP starts with"),
                (
                    "lockgate import swanctl /etc/swanctl/swanctl.conf --output gw-a.toml",
                    "Import the connections of strongSwan",
                ),
            ])
        },
    ),
    (
        "lockgate-import-swanctl",
        Sections {
            exit_status: IMPORTED,
            files: &[OUTPUT],
            ..live(&[
                (
                    "lockgate import swanctl swanctl.conf conf.d/*.conf --lan eth1 --wan eth0",
                    "Import a file with those that it includes, and name both interfaces",
                ),
                (
                    "lockgate import swanctl swanctl.conf --output gw-a.toml",
                    "Write the configuration to a new file",
                ),
            ])
        },
    ),
    (
        "lockgate-import-vpp",
        Sections {
            exit_status: IMPORTED,
            files: IMPORT_FILES,
            ..live(&[
                ("lockgate import vpp ipsec.cli --output gw-a.toml", "Import commands of VPP"),
                (
                    "lockgate import vpp ipsec.cli --output gw-a.toml --keys gw-a.keys",
                    "Take the keys over too",
                ),
            ])
        },
    ),
    (
        "lockgate-import-xfrm",
        Sections {
            exit_status: IMPORTED,
            files: IMPORT_FILES,
            ..live(&[
                (
                    "lockgate import xfrm --policy policy.txt --lan eth1 --wan eth0",
                    "Import policies alone, and name both interfaces",
                ),
                (
                    "lockgate import xfrm --state up.sh --policy up.sh --keys gw-a.keys",
                    "Import a script, with its keys",
                ),
            ])
        },
    ),
    (
        "lockgate-keygen",
        Sections {
            files: &[(
                "NAME_A-NAME_B.keys, NAME_B-NAME_A.keys",
                "The two files, mode 0600; a file that is there is not replaced.",
            )],
            ..live(&[(
                "lockgate keygen --suite aes-256-gcm gw-a gw-b",
                "Make keys for another cipher suite, in this folder",
            )])
        },
    ),
    (
        "lockgate-apply",
        change(&[
            ("lockgate apply -f new.toml --dry-run", "Say what would change"),
            ("lockgate apply -f new.toml --confirm 60s", "Go back in a minute unless confirmed"),
            ("lockgate apply -f new.toml --save", "Change it, for the next start too"),
        ]),
    ),
    (
        "lockgate-confirm",
        change(&[
            ("lockgate confirm", "Keep the change that waits"),
            ("lockgate confirm 12", "Keep it only if it is revision 12"),
        ]),
    ),
    (
        "lockgate-diff",
        Sections {
            exit_status: COMPARED,
            ..change(&[
                ("lockgate diff", "Compare the running configuration with the daemon's file"),
                (
                    "lockgate diff -f new.toml",
                    "Compare the running configuration with another file",
                ),
            ])
        },
    ),
    (
        "lockgate-rollback",
        change(&[
            ("lockgate rollback --list", "List the revisions that are kept"),
            ("lockgate rollback", "Go one step back"),
            ("lockgate rollback 7", "Go back to revision 7"),
        ]),
    ),
    (
        "lockgate-save",
        change(&[("lockgate save", "Start with the running configuration next time")]),
    ),
    (
        "lockgate-export",
        change(&[
            ("lockgate export > running.toml", "Write the running configuration to a file"),
            ("lockgate export 7", "Print revision 7"),
        ]),
    ),
    (
        "lockgate-policy",
        change(&[
            (
                "lockgate policy add --name dns --action bypass --local any --remote 9.9.9.9",
                "Let packets to one address leave in cleartext",
            ),
            ("lockgate policy del dns", "Take it away again"),
        ]),
    ),
    (
        "lockgate-policy-add",
        change(&[
            (
                "lockgate policy add --name berlin --peer berlin --local 10.1.0.0/16 \
                 --remote 10.2.0.0/16",
                "Protect what goes between two networks",
            ),
            ("lockgate policy add more.toml --dry-run", "Say what the policies of a file change"),
        ]),
    ),
    (
        "lockgate-policy-del",
        change(&[("lockgate policy del dns old-net", "Remove two policies in one step")]),
    ),
    (
        "lockgate-policy-change",
        change(&[(
            "lockgate policy change --add new.toml --del old-net",
            "Replace a policy; no packet finds neither",
        )]),
    ),
    (
        "lockgate-rule",
        change(&[
            (
                "lockgate rule add --group web --name https --action permit --from any \
                 --to 10.1.0.0/16 --protocol tcp --to-ports 443 --before rest",
                "Permit HTTPS, in front of the rule rest",
            ),
            ("lockgate rule del web/https", "Take the rule away again"),
        ]),
    ),
    (
        "lockgate-rule-add",
        change(&[(
            "lockgate rule add --group web --name admins --action permit --from @admins --to any \
             --dry-run",
            "Say what a rule for the members of a set would change",
        )]),
    ),
    (
        "lockgate-rule-del",
        change(&[("lockgate rule del web/https web/admins", "Remove two rules in one step")]),
    ),
    (
        "lockgate-set",
        change(&[
            ("lockgate set add admins 10.9.0.7 2001:db8:9::7", "Let two more hosts in"),
            ("lockgate set del admins 10.9.0.0/24", "Take a network out"),
        ]),
    ),
    ("lockgate-set-add", change(&[("lockgate set add admins 10.9.0.7", "Add a member")])),
    ("lockgate-set-del", change(&[("lockgate set del admins 10.9.0.7", "Remove a member")])),
    (
        "lockgate-connection",
        live(&[
            ("lockgate show connection host 10.1.0.7", "Show the connections of a host"),
            ("lockgate connection clear host 10.1.0.7", "Remove them"),
        ]),
    ),
    (
        "lockgate-connection-clear",
        live(&[
            (
                "lockgate connection clear net 10.1.0.0/16 and tcp and port 22",
                "Remove connections by either end",
            ),
            ("lockgate connection clear on lan", "Remove those that rules of a port let begin"),
        ]),
    ),
    (
        "lockgate-endpoint",
        live(&[
            ("lockgate endpoint import endpoints.csv", "Put all endpoints of a file"),
            ("lockgate show endpoint 7", "Show those of a virtual network"),
        ]),
    ),
    (
        "lockgate-endpoint-put",
        live(&[(
            "lockgate endpoint put 7 10.0.0.2 --host 192.0.2.12 --mac 02:07:00:00:00:02",
            "Say which host a tenant's address is behind",
        )]),
    ),
    ("lockgate-endpoint-del", live(&[("lockgate endpoint del 7 10.0.0.2", "Delete an endpoint")])),
    (
        "lockgate-endpoint-import",
        Sections {
            files: &[SOCKET, ("FILE", "Endpoints in CSV or JSON.")],
            ..live(&[
                ("lockgate endpoint import endpoints.csv", "Put all endpoints of a file"),
                ("lockgate endpoint import - --form json", "Put those that a program writes"),
            ])
        },
    ),
    (
        "lockgate-endpoint-export",
        Sections {
            files: &[SOCKET, ("FILE", "Endpoints in CSV or JSON.")],
            ..live(&[("lockgate endpoint export endpoints.csv", "Write all endpoints to a file")])
        },
    ),
    (
        "lockgate-endpoint-watch",
        live(&[
            ("lockgate endpoint watch", "Print changes from now on"),
            ("lockgate endpoint watch --since 500 --json", "Go on for a program that knows 500"),
        ]),
    ),
    (
        "lockgate-sa",
        live(&[
            ("lockgate sa reserve berlin", "Reserve an SPI for what peer berlin will send"),
            ("lockgate sa put new.sas", "Put the SAs of a file"),
            ("lockgate sa del 0x11aa2b01", "Delete one"),
        ]),
    ),
    (
        "lockgate-sa-put",
        Sections {
            files: &[SOCKET, ("FILE", "SAs with their keys: a regular file of mode 0600 or less.")],
            ..live(&[
                ("lockgate sa put new.sas --peer berlin", "Put SAs of one peer"),
                ("lockgate sa put - --json", "Put SAs that another program writes"),
            ])
        },
    ),
    (
        "lockgate-sa-del",
        live(&[(
            "lockgate sa del 0x00001001 --direction out --peer berlin",
            "Delete an outbound SA of one of several peers",
        )]),
    ),
    (
        "lockgate-sa-reserve",
        live(&[("lockgate sa reserve berlin --json", "Reserve an SPI, for another program")]),
    ),
    (
        "lockgate-sa-watch",
        live(&[("lockgate sa watch --json", "Print each policy that needs an SA, for a program")]),
    ),
    (
        "lockgate-status",
        live(&[
            ("lockgate status", "Show the gateway on one screen"),
            ("lockgate status --watch", "Show it again every two seconds"),
        ]),
    ),
    (
        "lockgate-show",
        live(&[
            ("lockgate show port", "Show all ports"),
            ("lockgate show peer berlin", "Show one peer"),
            ("lockgate show policy --json", "Print the policies and their counters as JSON"),
            ("lockgate show group web", "Show the rules of a security group and their counters"),
            ("lockgate show connection tcp state established", "Show connections by state"),
            ("lockgate show cache --entries 20", "Show flows of the cache"),
        ]),
    ),
    ("lockgate-explain", Sections { files: &[SOCKET, CONFIGURATION, KEYS], ..live(&[]) }),
    (
        "lockgate-plan",
        Sections {
            files: &[CONFIGURATION, ("FILE", "Packets by rule, of `lockgate show group --json`.")],
            ..live(&[])
        },
    ),
    ("lockgate-events", live(&[("lockgate events", "Print the events that the daemon keeps")])),
    ("lockgate-capture", live(&[])),
    (
        "lockgate-probe",
        Sections {
            exit_status: PROBED,
            files: &[("/proc, /sys", "What the kernel says about itself and its netdevs.")],
            ..live(&[
                ("lockgate probe", "Say what is missing, and how to get it"),
                ("lockgate probe --json", "The same for another program"),
            ])
        },
    ),
    (
        "lockgate-detach",
        live(&[("lockgate detach", "Open the ports that a stopped daemon left closed")]),
    ),
    (
        "lockgate-replay",
        Sections {
            files: &[
                ("OUT.pcap, OUT.PORT.pcap, OUT.host.pcap", "Frames that left."),
                ("OUT.keys, OUT.esp_sa", "Keys that were made for them, for others to read them."),
                KEYS,
            ],
            ..live(&[])
        },
    ),
    (
        "lockgate-demo",
        other(
            &[
                ("lockgate demo replay", "Replay captures through three gateways"),
                ("lockgate demo gateways", "Run two gateways in network namespaces, as root"),
                ("lockgate demo overlay", "Show virtual networks of two compute nodes, as root"),
                ("lockgate demo offload", "Show rules on an emulated network card, as root"),
            ],
            &[("/usr/libexec/lockgate/lockgate-demo", "The program, of package lockgate-tools.")],
        ),
    ),
    (
        "lockgate-bench",
        other(
            &[("lockgate bench esp", "Measure how quickly packets are sealed and opened")],
            &[("/usr/libexec/lockgate/lockgate-bench", "The program, of package lockgate-tools.")],
        ),
    ),
];
