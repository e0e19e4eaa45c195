//! Bounds of answers, calls, requests and connections.

use super::*;

/// A list is not made whole for each stream.
#[tokio::test]
async fn unread_answers_hold_a_page_each() {
    let (directory, fake, server, _client) = lab(Duration::ZERO).await;
    fake.sa_count.store(10_000_000, Ordering::Relaxed);
    let mut unread = Vec::new();
    // One answer a connection: unread answers would use up the window of others.
    for _ in 0..16 {
        let mut client = api::connect(&directory.socket()).await.unwrap();
        let all = v1::ShowRequest::default();
        let mut stream = client.show_security_associations(all).await.unwrap().into_inner();
        let page = stream.message().await.unwrap().unwrap();
        assert!((1..=api::PAGE_ENTRIES).contains(&page.sas.len()));
        unread.push(stream);
    }
    // Clients take in a few MiB a connection, of 23 bytes an entry; the server holds a page and the
    // next entry of each answer.
    let most = unread.len() * (4 << 20) / 23 + unread.len() * 3 * api::PAGE_ENTRIES;
    let made = fake.made.load(Ordering::Relaxed) as usize;
    assert!(made <= most, "{made} entries are made, {most} at most");
    // The next pages come when they are read.
    let mut rest = unread.pop().unwrap();
    for _ in 0..200 {
        assert!(!rest.message().await.unwrap().unwrap().sas.is_empty());
    }
    // A server that stops waits for answers under way.
    drop((unread, rest));
    server.stop().await;
}

/// Once each unread answer held counts of its own.
#[tokio::test]
async fn unread_answers_of_a_user_share_one_set_of_counts() {
    const UNREAD: usize = 32;
    let fake = Fake::new(Duration::ZERO);
    let (_goes_on, ended) = tokio::sync::watch::channel(());
    let service = Service::sharing(fake.clone(), ended, Duration::from_secs(3600));
    let all = || tonic::Request::new(v1::ShowRequest::default());
    let mut unread = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..UNREAD {
        let (peers, sas, policies) = tokio::join!(
            service.show_peers(all()),
            service.show_security_associations(all()),
            service.show_policies(all())
        );
        unread.0.push(peers.unwrap());
        unread.1.push(sas.unwrap());
        unread.2.push(policies.unwrap());
    }
    assert_eq!((fake.counted.load(Ordering::Relaxed), service.held_counts()), (1, 1));
    // A last answer of each kind holds the counts alone.
    for kind in 0..3 {
        match kind {
            0 => unread.0.clear(),
            1 => unread.1.clear(),
            _ => unread.2.clear(),
        }
        assert_eq!(service.held_counts(), usize::from(kind < 2));
    }
    // Where no answer holds counts, the next answer has new ones.
    drop(service.show_peers(all()).await.unwrap());
    assert_eq!((fake.counted.load(Ordering::Relaxed), service.held_counts()), (2, 0));
}

#[tokio::test]
async fn calls_beyond_the_limit_are_refused_and_others_go_on() {
    let (directory, _fake, server, mut client) = lab(Duration::ZERO).await;
    let root = nix::unistd::geteuid().is_root();
    let most = if root { api::MAX_CALLS } else { api::MAX_USER_CALLS };
    let follow = v1::EventsRequest { follow: true, ..v1::EventsRequest::default() };
    let mut open = Vec::new();
    while open.len() < most {
        let mut other = api::connect(&directory.socket()).await.unwrap();
        for _ in 0..(api::MAX_STREAMS as usize).min(most - open.len()) {
            open.push(other.events(follow.clone()).await.unwrap().into_inner());
        }
    }
    let refused = client.show_ports(v1::ShowRequest::default()).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    assert!(refused.message().starts_with(&format!("too many calls: {most} ")), "{refused}");
    open.clear();
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    while client.show_ports(v1::ShowRequest::default()).await.is_err() {
        assert!(tokio::time::Instant::now() < deadline, "never room again");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    server.stop().await;
}

#[tokio::test]
async fn a_request_that_carries_no_configuration_may_not_be_large() {
    let (_directory, _, server, mut client) = lab(Duration::ZERO).await;
    let refused = client.show_policies(named(&"x".repeat(100_000))).await.unwrap_err();
    assert!(refused.message().contains("larger than 65536 bytes"), "{refused}");
    // The connection lives on.
    client.show_policies(named("rest")).await.unwrap();
    // Only administrators send a configuration.
    if is_root("a_request_that_carries_no_configuration_may_not_be_large") {
        let padded = format!("{CONFIG}{}", "# padding\n".repeat(100_000));
        assert!(client.apply(apply_of(&padded)).await.unwrap().into_inner().ok);
    }
    server.stop().await;
}

/// Applies a configuration as large as one of a million policies; 65 MiB were the limit once.
#[tokio::test]
async fn a_configuration_of_170_mb_is_taken_as_it_is_from_a_file() {
    let (_directory, fake, server, mut client) = lab(Duration::ZERO).await;
    let line = format!("# {}\n", "padding ".repeat(100_000));
    let padded = format!("{CONFIG}{}", line.repeat(170_000_000 / line.len() + 1));
    assert!(client.apply(apply_of(&padded)).await.unwrap().into_inner().ok);
    assert!(fake.asked().last().unwrap().starts_with("applied"), "{:?}", fake.asked());
    server.stop().await;
}

#[tokio::test]
async fn a_request_beyond_the_limit_is_refused_in_words_with_both_sizes() {
    let (directory, _, server, _client) = lab(Duration::ZERO).await;
    let text = "# padding\n".repeat(api::MAX_REQUEST_BYTES / 10 + 1_000_000);
    let mut client =
        api::connect(&directory.socket()).await.unwrap().max_encoding_message_size(usize::MAX);
    let refused = client.apply(apply_of(&text)).await.unwrap_err();
    assert_eq!(refused.code(), Code::OutOfRange, "{refused}");
    let limit = api::MAX_REQUEST_BYTES.to_string();
    let size = (text.len() + 30).to_string();
    assert!(refused.message().contains(&limit), "{refused}");
    assert!(refused.message().contains(&size[..5]), "{refused}");
    server.stop().await;
}

#[tokio::test]
async fn a_connection_that_says_nothing_is_closed_and_one_that_asks_stays() {
    let (directory, _, server, mut client) = lab(Duration::ZERO).await;
    client.show_status(v1::ShowRequest::default()).await.unwrap();
    let mut silent = tokio::net::UnixStream::connect(directory.socket()).await.unwrap();
    let mut slow = tokio::net::UnixStream::connect(directory.socket()).await.unwrap();
    slow.write_all(b"PRI * HTTP").await.unwrap();
    let limit = api::HANDSHAKE_TIME + Duration::from_secs(20);
    for stream in [&mut silent, &mut slow] {
        let mut said = Vec::new();
        let closed = tokio::time::timeout(limit, stream.read_to_end(&mut said)).await;
        closed.expect("closed within {limit:?}").ok();
    }
    client.show_status(v1::ShowRequest::default()).await.unwrap();
    server.stop().await;
}

#[tokio::test]
async fn a_connection_too_many_is_told_so_in_words_and_there_is_room_again_afterwards() {
    let (directory, _, server, client) = lab(Duration::ZERO).await;
    drop(client);
    let root = nix::unistd::geteuid().is_root();
    let most = if root { api::MAX_CONNECTIONS } else { api::MAX_USER_CONNECTIONS };
    let mut open = Vec::new();
    let refused = loop {
        let mut client = api::connect(&directory.socket()).await.unwrap();
        match client.show_status(v1::ShowRequest::default()).await {
            Ok(_) => open.push(client),
            Err(refused) => break refused,
        }
        assert!(open.len() <= most, "more than {most} are answered");
    };
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    let words = format!("too many connections: {most} ");
    assert!(refused.message().starts_with(&words), "{refused}");
    assert!(open.len() + 1 >= most, "{} of {most}", open.len());
    open.clear();
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    loop {
        let mut client = api::connect(&directory.socket()).await.unwrap();
        if client.show_status(v1::ShowRequest::default()).await.is_ok() {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "never room again");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    server.stop().await;
}
