//! SAs and policies against a real kernel, in network namespaces.

mod namespace;

use std::net::IpAddr;
use std::process::Command;

use linux::xfrm::{
    OffloadMode, OffloadTo, PolicyWay, REQIDS, SaWay, Xfrm, XfrmEnds, XfrmError, XfrmLimits,
    XfrmPolicy, XfrmSa, XfrmSelector, cipher_name,
};
use namespace::{inside, ip};

fn ends() -> XfrmEnds {
    let ip = |text: &str| -> IpAddr { text.parse().unwrap() };
    XfrmEnds { source: ip("192.0.2.1"), destination: ip("198.51.100.7") }
}

fn policy(reqid: u32, to: [u8; 4], way: PolicyWay) -> XfrmPolicy {
    XfrmPolicy {
        way,
        selector: XfrmSelector {
            source: ([10, 1, 0, 0].into(), 16),
            destination: (to.into(), 24),
            protocol: None,
            source_port: None,
            destination_port: None,
        },
        priority: 100,
        ends: ends(),
        reqid,
        packet_offload: None,
    }
}

/// Runs `ip` with these words in the namespace of the test; returns what it printed.
fn printed(words: &str) -> String {
    let output = Command::new("ip").args(words.split_whitespace()).output().unwrap();
    assert!(output.status.success(), "ip {words}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_policy_is_there_as_ip_reads_it_until_it_is_taken_out() {
    inside("a_policy_is_there_as_ip_reads_it_until_it_is_taken_out", |_| {
        let mut xfrm = Xfrm::open().unwrap();
        let ours = policy(*REQIDS.start(), [10, 2, 0, 0], PolicyWay::Out);
        xfrm.add_policy(&ours).unwrap();
        let listed = printed("xfrm policy list");
        for words in [
            "src 10.1.0.0/16 dst 10.2.0.0/24",
            "dir out priority 100",
            "tmpl src 192.0.2.1 dst 198.51.100.7",
            "proto esp reqid 1279721472 mode tunnel",
        ] {
            assert!(listed.contains(words), "{words}: {listed}");
        }
        let refused = xfrm.add_policy(&ours).unwrap_err();
        assert_eq!(refused.errno(), libc::EEXIST, "{refused}");
        assert!(xfrm.remove_policy(&ours).unwrap());
        assert!(!xfrm.remove_policy(&ours).unwrap());
        assert_eq!(printed("xfrm policy list"), "");
    });
}

/// States that wait for an SA: the kernel makes them without ESP too.
#[test]
fn a_sweep_takes_out_what_has_our_numbers_and_nothing_else() {
    inside("a_sweep_takes_out_what_has_our_numbers_and_nothing_else", |_| {
        let mut xfrm = Xfrm::open().unwrap();
        let [first, last] = [*REQIDS.start(), *REQIDS.end()];
        let numbers = [1, first - 1, first, last, last + 1, u32::MAX];
        for (place, reqid) in (0u8..).zip(numbers) {
            for way in [PolicyWay::In, PolicyWay::Forward, PolicyWay::Out] {
                xfrm.add_policy(&policy(reqid, [10, 2, place, 0], way)).unwrap();
            }
            ip(&format!(
                "xfrm state allocspi src 192.0.2.1 dst 198.51.100.{place} proto esp mode tunnel \
                 reqid {reqid} min 0x1000 max 0x2000"
            ));
        }
        // One without templates, and one with two numbers, are not ours either.
        ip("xfrm policy add src 10.9.0.0/16 dst 10.8.0.0/16 dir out action block");
        let of =
            |reqid| format!("tmpl src 1.1.1.1 dst 2.2.2.2 proto esp reqid {reqid} mode tunnel ");
        let both = of(first) + &of(7);
        ip(&format!("xfrm policy add src 10.9.0.0/16 dst 10.7.0.0/16 dir out {both}"));
        assert_eq!(xfrm.sweep().unwrap(), 2 * (3 + 1));
        let left: Vec<u32> = xfrm.sas().unwrap().iter().map(|found| found.reqid).collect();
        for reqid in numbers {
            let is_ours = REQIDS.contains(&reqid);
            assert_eq!(left.contains(&reqid), !is_ours, "state of {reqid}");
            let policies = xfrm.policies().unwrap();
            let count = policies.iter().filter(|found| found.reqid == Some(reqid)).count();
            assert_eq!(count, if is_ours { 0 } else { 3 }, "policies of {reqid}");
        }
        assert_eq!(xfrm.policies().unwrap().len(), 4 * 3 + 2);
        assert_eq!(xfrm.sweep().unwrap(), 0);
    });
}

/// Either this kernel has ESP, and takes and shows the SA; or it says why not, and has nothing.
#[test]
fn an_sa_is_there_or_the_kernel_says_why_not() {
    inside("an_sa_is_there_or_the_kernel_says_why_not", |_| {
        let mut xfrm = Xfrm::open().unwrap();
        let sa = XfrmSa {
            way: SaWay::Out,
            spi: 0x1001,
            ends: ends(),
            reqid: *REQIDS.start(),
            cipher: cipher_name("aes-256-gcm").unwrap(),
            key: &[7; 36],
            window: 0,
            esn: true,
            limits: XfrmLimits { hard_packets: Some(10), ..XfrmLimits::default() },
            offload: None,
        };
        match xfrm.add_sa(&sa) {
            Ok(()) => {
                let found = xfrm.find_sa(ends(), 0x1001).unwrap().unwrap();
                assert_eq!((found.reqid, found.packets), (sa.reqid, 0));
                assert!(xfrm.remove_sa(ends(), 0x1001).unwrap());
            }
            Err(error) => {
                let XfrmError::Refused { errno, text } = &error else { panic!("{error}") };
                assert!(error.is_unsupported() && *errno > 0 && !text.is_empty(), "{error:?}");
                assert!(!text.starts_with("Invalid argument"), "the kernel's own: {text}");
            }
        }
        // No card is behind the loopback netdev, whatever the kernel is built with.
        for mode in [OffloadMode::Crypto, OffloadMode::Packet] {
            let asked = xfrm.probe(Some(OffloadTo { ifindex: 1, mode }));
            assert!(asked.unwrap_err().is_unsupported());
        }
        assert_eq!(xfrm.sas().unwrap(), []);
    });
}
