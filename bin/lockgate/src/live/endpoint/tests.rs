use super::*;

fn endpoint(address: &str) -> v1::Endpoint {
    v1::Endpoint {
        vni: 7,
        address: address.into(),
        host: "192.0.2.12".into(),
        host_mac: None,
        mac: "02:07:00:00:00:02".into(),
        revision: 9,
    }
}

fn read(text: &str) -> Vec<Result<Change, String>> {
    let text = text.to_owned();
    match lines::csv(Box::new(std::io::Cursor::new(text)), "file.csv") {
        Ok(rows) => rows.map(|row| row.map_err(|error| error.to_string())).collect(),
        Err(error) => vec![Err(error.to_string())],
    }
}

#[test]
fn what_is_exported_is_imported() {
    for form in [FileForm::Csv, FileForm::Json] {
        let endpoints = vec![endpoint("10.0.0.2"), endpoint("2001:db8::2")];
        let sums = Some(v1::EndpointSums { endpoints: 2, ..v1::EndpointSums::default() });
        let text = Printer::new(Shape::File(form))
            .page(&v1::EndpointPage { endpoints: endpoints.clone(), sums });
        let puts: Vec<Change> = match form {
            FileForm::Csv => read(&text).into_iter().map(Result::unwrap).collect(),
            FileForm::Json => {
                let read: Listed = serde_json::from_str(&text).unwrap();
                read.endpoints.into_iter().map(|line| Change::Put(line.into())).collect()
            }
        };
        let expected: Vec<Change> = endpoints.into_iter().map(Change::Put).collect();
        assert_eq!(puts, expected, "{form:?}");
    }
}

#[test]
fn columns_may_be_missing_and_stand_in_any_order() {
    let rows = read("mac, vni,host,address\n02:07:00:00:00:02,7,192.0.2.12,10.0.0.2\n");
    let expected = v1::Endpoint { revision: 0, ..endpoint("10.0.0.2") };
    assert_eq!(rows, [Ok(Change::Put(expected))]);
}

#[test]
fn mistakes_name_file_and_line() {
    let wrong = |text: &str| read(text).pop().unwrap().unwrap_err();
    let column = wrong("vni,adress,host,mac\n");
    assert!(
        column.contains("file.csv:1") && column.contains("did you mean `address`?"),
        "{column}"
    );
    let number = wrong("vni,address,host,mac\n7,a,b,c\nx,a,b,c\n");
    assert!(number.contains("file.csv:3"), "{number}");
    let short = wrong("vni,address,host,mac\n7,10.0.0.1\n");
    assert!(short.contains("file.csv:2"), "{short}");
}

#[test]
fn tables_and_sums_are_said_in_words() {
    let sums = v1::EndpointSums { endpoints: 1, max: 64, hosts: 1, tombstones: 2 };
    let page = v1::EndpointPage { endpoints: vec![endpoint("10.0.0.2")], sums: Some(sums) };
    let text = Printer::new(Shape::Table).page(&page);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines,
        [
            "Endpoints",
            "       vni  address          host             host MAC           MAC               \
             revision",
            "         7  10.0.0.2         192.0.2.12       -                  02:07:00:00:00:02  \
             \x20     9",
            "",
            "1 of 64 endpoints, at 1 host of their networks; 2 deletions remembered",
        ]
    );
    let nothing = v1::EndpointPage { endpoints: vec![], sums: Some(sums) };
    assert!(Printer::new(Shape::Table).page(&nothing).starts_with("no endpoints\n\n1 of 64"));
}
