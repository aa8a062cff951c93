//! The operation of a GraphQL request.

use super::*;

const JSON: &str = "application/json";

#[test]
fn body_graphql_operation_is_named_by_the_document() {
    let operation = |body: &str| one("graphql:operation", JSON, body);
    assert_eq!(
        operation(r#"{"query":"query Top { a }","variables":{"query":1}}"#),
        Ok(Some("Top".into()))
    );
    assert_eq!(operation(r#"{"query":"{ a }"}"#), Ok(None));
    assert_eq!(
        operation(r#"{"query":"query Top { a }","operationName":"Cheap"}"#),
        Err(OperationFlaw::Unknown.into())
    );
    assert_eq!(
        operation(r#"{"operationName":"Saved"}"#),
        Ok(Some("Saved".into()))
    );
    assert_eq!(operation(r#"{"query":["x"]}"#), Err(BodyFlaw::Ambiguous));
}

#[test]
fn body_graphql_that_is_no_json_is_refused() {
    for (kind, body) in [
        ("application/graphql", "query Dear { a }"),
        ("application/graphql", "{ a }"),
        ("application/graphql", "  "),
        ("application/graphql", "#x\nquery Dear { a }"),
        (FORM, "query=query+Dear%7Ba%7D"),
        (FORM, "operationName=Dear"),
        ("text/plain", "query Dear { a }"),
        ("multipart/form-data; boundary=x", "--x\r\n"),
        (JSON, "\"query Dear { a }\""),
    ] {
        let read = one("graphql:operation", kind, body);
        assert_eq!(read, Err(BodyFlaw::Malformed), "{kind}: {body}");
    }
}

#[test]
fn body_graphql_without_query_and_operation_name_is_ambiguous() {
    for body in [
        r#"{"extensions":{"persistedQuery":{"version":1,"sha256Hash":"00"}}}"#,
        r#"{"documentId":"00"}"#,
        r#"{"query":"","operationName":null}"#,
        "{}",
    ] {
        let read = one("graphql:operation", JSON, body);
        assert_eq!(read, Err(OperationFlaw::Unsaid.into()), "{body}");
    }
}

#[test]
fn body_graphql_whose_target_names_a_document_is_ambiguous() {
    let mut wanted = Wanted::default();
    let asked = wanted.ask(&Source::GraphqlOperation).expect("room");
    for name in [
        "query",
        "operationName",
        "extensions",
        "documentId",
        "id",
        "doc_id",
        "operationId",
    ] {
        let found = check_query(asked, Some(&format!("a=1&{name}=x")));
        assert_eq!(found, Err(OperationFlaw::InTarget.into()), "{name}");
    }
    assert_eq!(check_query(asked, Some("a=1")), Ok(()));
}

#[test]
fn body_graphql_that_names_another_document_than_its_query_is_ambiguous() {
    let query = "query Top { a }";
    let read = |others: &str| {
        let body = format!(r#"{{"query":"{query}",{others}}}"#);
        one("graphql:operation", JSON, &body)
    };
    for others in [
        r#""documentId":"00""#,
        r#""id":"00""#,
        r#""id":7"#,
        r#""doc_id":"00""#,
        r#""Doc_Id":"00""#,
        r#""operationId":"client/00""#,
        r#""operationId":7"#,
        r#""extensions":{"operationId":"client/00"}"#,
        r#""extensions":{"operationId":7}"#,
        r#""extensions":{"operationId":["client/00"]}"#,
        r#""extensions":{"OperationID":"client/00"}"#,
        r#""extensions":{"persistedQuery":{"version":1,"sha256Hash":"00"}}"#,
        r#""extensions":{"persistedQuery":{"version":1}}"#,
        r#""extensions":{"persistedQuery":{"version":1,"sha256Hash":["00"]}}"#,
        r#""extensions":{"persistedQuery":"00"}"#,
        r#""extensions":{"PersistedQuery":{}}"#,
        r#""extensions":[{"persistedQuery":{"sha256Hash":"00"}}]"#,
        r#""extensions":"{\"persistedQuery\":{\"sha256Hash\":\"00\"}}""#,
    ] {
        let found = read(others);
        assert!(
            matches!(
                found,
                Err(BodyFlaw::Operation(OperationFlaw::Beside) | BodyFlaw::Ambiguous)
            ),
            "{others}: {found:?}"
        );
    }
    for others in [
        r#""documentId":null,"id":null,"doc_id":null"#,
        r#""variables":{"id":7},"extensions":{"trace":{"id":"00"}}"#,
        r#""extensions":null"#,
        r#""extensions":{"persistedQuery":null}"#,
        r#""operationId":null,"extensions":{"operationId":null}"#,
    ] {
        assert_eq!(read(others), Ok(Some("Top".into())), "{others}");
    }
}

#[test]
fn body_graphql_with_the_hash_of_its_query_is_read() {
    // SHA-256 of `query Top { a }`.
    let hash = "eaa2f44b215b560e3a07a55275ee40f009eef0014dea2f070507394012118e19";
    let extensions = |hash: &str| {
        format!(r#""extensions":{{"persistedQuery":{{"version":1,"sha256Hash":"{hash}"}}}}"#)
    };
    let read = |body: &str| one("graphql:operation", JSON, body);
    let same = extensions(hash);
    let sent = format!(r#"{{"query":"query Top {{ a }}",{same}}}"#);
    assert_eq!(read(&sent), Ok(Some("Top".into())));
    assert_eq!(read(&format!("[{sent},{sent}]")), Ok(Some("Top".into())));
    let other = extensions(&hash.to_uppercase());
    let changed = format!(r#"{{"query":"query Top {{ a }}",{other}}}"#);
    assert_eq!(read(&changed), Err(OperationFlaw::Beside.into()));
    assert_eq!(
        read(&format!("[{sent},{changed}]")),
        Err(BodyFlaw::Mixed),
        "all of a batch"
    );
    let later = r#"{"query":"query Top { a }","id":"00"}"#;
    let first = r#"{"query":"query Top { a }"}"#;
    assert_eq!(
        read(&format!("[{first},{later}]")),
        Err(BodyFlaw::Mixed),
        "all of a batch"
    );
    let stored = extensions(hash).replace("{\"p", "{\"operationId\":\"client/00\",\"p");
    let both = format!(r#"{{"query":"query Top {{ a }}",{stored}}}"#);
    assert_eq!(read(&both), Err(OperationFlaw::Beside.into()));
    // Without `query` only the name counts, as it does without a hash.
    let named = format!(r#"{{"operationName":"Top",{other}}}"#);
    assert_eq!(read(&named), Ok(Some("Top".into())));
    assert_eq!(
        read(r#"{"operationName":"Top","documentId":"00"}"#),
        Ok(Some("Top".into()))
    );
}
