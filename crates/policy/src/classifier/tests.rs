//! The search against the linear oracle.

mod hostile;
mod oracle;
mod sets;
mod speed;

use super::*;

#[test]
fn a_set_of_positions_grows_as_needed() {
    let mut dead = Dead::default();
    assert!(dead.is_empty() && !dead.contains(7) && !dead.contains(u32::MAX));
    for position in [64, 7, 1_000_000, 64] {
        dead.insert(position);
    }
    assert_eq!(dead.len(), 3);
    assert!(dead.contains(7) && dead.contains(64) && dead.contains(1_000_000));
    assert!(!dead.contains(8) && !dead.contains(65) && !dead.contains(2_000_000));
}
