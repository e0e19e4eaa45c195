//! Configurations beside which charon's own policies find no room in the search.

use charon_link::{Hardness, Report, Selector, Status};
use control::IkeChange;

use super::*;
use crate::charon::own::OwnKey;

/// Policies of charon's, and of the file: one of the two fits, and both do not.
const MANY: u32 = 3_000;

/// Selectors that lie within those of lower numbers on one side, and around them on the other: no
/// search tells many of them apart in a few steps.
fn nested(number: u32) -> [Selector; 2] {
    let inset = |by: u32| {
        let ends = [by, u32::MAX - by].map(|bits| Ipv4Addr::from_bits(bits).to_string());
        range(&ends[0], &ends[1])
    };
    [inset(number), inset(10_000 - number)]
}

fn policy_of_file(number: u32) -> String {
    let [local, remote] = nested(number)
        .map(|Selector { addresses: (first, last), .. }| format!("[\"{first}-{last}\"]"));
    format!(
        "[[policy]]\nname = \"h{number}\"\naction = \"discard\"\npriority = {number}\n\
         local = {local}\nremote = {remote}\n"
    )
}

/// Has a CHILD_SA of charon's have many policies, in one change.
async fn many_policies(lab: &mut Lab) {
    lab.done(add(sa(Outbound, 0x500, 5, to(1)))).await;
    let picture = lab.daemon().picture();
    let bounds = picture.config().ike.as_ref().unwrap();
    let mut change = IkeChange::default();
    for number in 0..MANY {
        let policy = outbound(nested(number), 5, 0x500);
        let key = OwnKey::Protect("ike:5".into(), nested(number));
        let planned = lab.desk.own.plan_policy(&key, policy.priority, bounds).unwrap();
        lab.desk.own.note_policy(key, &planned.name);
        lab.desk.book.add_policy(policy);
        change.policies.push(planned);
    }
    lab.desk.change(change).await.unwrap();
}

#[tokio::test]
async fn a_configuration_that_leaves_no_room_runs_and_charon_is_told_of_what_went() {
    let any = BOUNDS.replace(
        "local = [\"10.1.0.0/16\"]\nremote = [\"10.9.0.0/16\"]",
        "local = [\"any\"]\nremote = [\"any\"]",
    );
    assert_ne!(any, BOUNDS);
    let mut lab = Lab::new(&any);
    many_policies(&mut lab).await;
    assert_eq!(lab.shown().1.len(), MANY as usize);
    assert!(lab.verdict("10.1.0.1", "10.9.1.1").contains("protect ike:5 with 1 SAs"));
    let all: String = (MANY..2 * MANY).map(policy_of_file).collect();
    lab.apply(&format!("{FILE}{all}{any}")).await;
    // At once: charon never keeps the file out.
    assert_eq!(lab.shown(), (vec![], vec![]));
    assert_eq!(lab.daemon().security_associations().await.len(), 0);
    assert_eq!(lab.verdict("10.1.0.1", "10.9.1.1"), "h5999: discard");
    // With its next request charon hears of it, and nothing comes back beside the file.
    let gone = NamedRequest::QuerySa(sa(Outbound, 0x500, 5, to(1)).name);
    assert_eq!(lab.ask(gone.clone()).await.status, Status::Unknown);
    let due = lab.desk.take_due();
    let handle = lab.ledger.handle(sa(Outbound, 0x500, 5, to(1)).name);
    assert_eq!(due, [Report::Expire { handle, hardness: Hardness::Hard }]);
    assert_eq!(lab.shown(), (vec![], vec![]));
    assert_eq!(lab.verdict("10.1.0.1", "10.9.1.1"), "h5999: discard");
    // As soon as there is room, all of them run again.
    lab.apply(&format!("{FILE}{any}")).await;
    lab.ask(gone).await;
    assert_eq!(lab.shown().1.len(), MANY as usize);
    assert!(lab.verdict("10.1.0.1", "10.9.1.1").contains("protect ike:5 with 0 SAs"));
}
