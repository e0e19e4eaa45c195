//! A process that has not tested its ciphers measures none. A program of its own, because the test
//! holds for the whole process.

use ipsec::cipher::{BackendKind, Choice};
use ipsec::{Cipher, KeyMaterial, Suite};

#[test]
fn backends_are_measured_only_after_the_self_test() {
    let first = |suite: Suite| Choice::One(BackendKind::first(suite));
    for &suite in Suite::ALL {
        assert_eq!(Choice::of(suite), first(suite), "{suite}");
    }
    assert_eq!(ipsec::self_test(), Ok(()));
    for &suite in Suite::ALL {
        let material = KeyMaterial::new(suite, &vec![1; suite.material_bytes()]).unwrap();
        let (choice, name) = (Choice::of(suite), Cipher::new(&material).backend_name());
        println!("{suite}: {name}");
        assert_eq!(Choice::of(suite), choice, "measured once");
        assert!(choice == first(suite) || suite.is_aead(), "{suite}");
    }
}
