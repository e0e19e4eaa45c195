use super::*;

fn host(boot: &str) -> HostIdentity {
    HostIdentity::new("machine", boot)
}

fn key(number: u64) -> u128 {
    u128::from(mix(number)) << 64
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// A file of the earlier version with these keys.
fn earlier_file(boot: &str, keys: impl Iterator<Item = u64>) -> Vec<u8> {
    let host = host(boot);
    let mut bytes = header(FileKind::Earlier, &host);
    for (number, place) in keys.zip(0..) {
        let half = first_half(key(number));
        bytes.extend([half, check(half, place, host.boot)].map(u64::to_ne_bytes).as_flattened());
    }
    bytes
}

/// Such keys once took up the places of IKE: 2^22 of them stopped every put until the boot.
#[test]
fn four_million_keys_of_an_earlier_version_are_known_in_their_boot_and_damage_is_noticed() {
    let folder = folder();
    let path = folder.path().join("keys-used");
    let many = (1 << 22) + 1;
    let bytes = earlier_file("1", 0..many);
    std::fs::write(&path, [&bytes[..], &[0; 5]].concat()).unwrap();
    let known = |keys: &EarlierKeys| [0, many - 1, many].map(|number| keys.knows(key(number)));
    let keys = EarlierKeys::read(&path, &host("1"), many);
    assert_eq!(known(&keys), [PutBefore::Yes, PutBefore::Yes, PutBefore::No]);
    assert_eq!(known(&EarlierKeys::read(&path, &host("2"), 0)), [const { PutBefore::No }; 3]);
    let unknown = || PutBefore::UnknownUntilBoot(path.clone());
    let keys = EarlierKeys::read(&path, &host("1"), many + 1);
    assert_eq!(known(&keys), [PutBefore::Yes, PutBefore::Yes, unknown()]);
    let mut bytes = earlier_file("1", 0..3);
    bytes[HEADER_BYTES + RECORD_BYTES] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let keys = EarlierKeys::read(&path, &host("1"), 0);
    assert_eq!(
        [0, 1, 2].map(|number| keys.knows(key(number))),
        [PutBefore::Yes, unknown(), unknown()]
    );
    std::fs::remove_file(&path).unwrap();
    assert_eq!(EarlierKeys::read(&path, &host("1"), 0).knows(key(0)), PutBefore::No);
    assert_eq!(EarlierKeys::read(&path, &host("1"), 1).knows(key(0)), unknown());
    std::fs::create_dir(&path).unwrap();
    assert_eq!(EarlierKeys::read(&path, &host("1"), 0).knows(key(0)), unknown());
}

#[test]
fn named_keys_are_known_until_the_boot_and_a_file_cut_anywhere_hides_none() {
    let folder = folder();
    let path = folder.path().join("named-keys");
    let counted: &'static AtomicU64 = Box::leak(Box::default());
    let open = |boot: &str| NamedKeys::open_with(&path, &host(boot), counted, 4).unwrap();
    open("1").add(&[key(1), key(2), key(3)]).unwrap();
    let mut keys = open("1");
    assert_eq!(keys.add(&[key(4), key(5)]), Err(AddError::Full));
    assert_eq!((keys.count(), keys.knows(key(3))), (3, PutBefore::Yes));
    let whole = std::fs::read(&path).unwrap();
    let unknown = || PutBefore::UnknownUntilBoot(path.clone());
    for handed_out in 0..=3 {
        for cut in 0..=whole.len() {
            std::fs::write(&path, &whole[..cut]).unwrap();
            counted.store(handed_out, Ordering::Relaxed);
            let mut keys = open("1");
            let left = cut.saturating_sub(HEADER_BYTES) as u64 / RECORD_BYTES as u64;
            for number in 1..=3 {
                let expected = match (left >= handed_out, number <= left) {
                    (false, _) => unknown(),
                    (true, true) => PutBefore::Yes,
                    (true, false) => PutBefore::No,
                };
                assert_eq!(keys.knows(key(number)), expected, "{handed_out} of {cut} bytes");
            }
            match left >= handed_out {
                true => {
                    keys.add(&[key(9)]).unwrap();
                    assert_eq!(open("1").knows(key(9)), PutBefore::Yes, "{cut}");
                }
                false => assert_eq!(keys.add(&[key(9)]), Err(AddError::Damaged(path.clone()))),
            }
        }
    }
    counted.store(0, Ordering::Relaxed);
    let mut bytes = whole.clone();
    bytes[HEADER_BYTES + 1] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    assert_eq!(open("1").knows(key(3)), unknown());
    std::fs::write(&path, whole).unwrap();
    assert_eq!(open("2").knows(key(3)), PutBefore::No);
}
