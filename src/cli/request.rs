//! A request in short notation: `GET /x`, `POST api.example.com/orders?id=1`, `GET https://host/x`.

use http::header::{HOST, HeaderName, HeaderValue};
use http::{HeaderMap, Method, Uri};

#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) method: Method,
    pub(super) uri: Uri,
    pub(super) headers: HeaderMap,
    pub(super) tls: bool,
}

impl Request {
    /// Parses `[METHOD] [SCHEME://][HOST]/PATH`; the default method is GET.
    pub(super) fn parse(text: &str, headers: &[String]) -> Result<Self, String> {
        let text = text.trim();
        let (method, target) = match text.split_once(char::is_whitespace) {
            Some((method, target)) => (method, target.trim()),
            None if text.contains('/') => ("GET", text),
            None => return Err(format!("`{text}` is no request: METHOD [HOST]/PATH")),
        };
        let method = Method::from_bytes(method.as_bytes())
            .map_err(|_| format!("`{method}` is no method"))?;
        let (tls, rest) = match target.split_once("://") {
            Some(("https", rest)) => (true, rest),
            Some(("http", rest)) => (false, rest),
            _ => (false, target),
        };
        let slash = rest
            .find('/')
            .ok_or_else(|| format!("`{target}` has no path: METHOD [HOST]/PATH"))?;
        let (host, path) = rest.split_at(slash);
        let uri = tollgate_http1::request::target(path.to_owned().into())
            .ok_or_else(|| format!("`{path}` has a character that cannot stand in a URL"))?;
        let mut fields = HeaderMap::new();
        for header in headers {
            let (name, value) = field(header)?;
            fields.append(name, value);
        }
        if !fields.contains_key(HOST) {
            let host = if host.is_empty() { "localhost" } else { host };
            let host = HeaderValue::from_str(host).map_err(|_| format!("`{host}` is no host"))?;
            fields.insert(HOST, host);
        }
        Ok(Self {
            method,
            uri,
            headers: fields,
            tls,
        })
    }
}

fn field(text: &str) -> Result<(HeaderName, HeaderValue), String> {
    let (name, value) = text
        .split_once(':')
        .ok_or_else(|| format!("`{text}` is no header: NAME: VALUE"))?;
    let name = HeaderName::from_bytes(name.trim().as_bytes())
        .map_err(|_| format!("`{name}` is no header name"))?;
    let value = HeaderValue::from_str(value.trim())
        .map_err(|_| format!("the value of `{name}` is no header value"))?;
    Ok((name, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_as_people_write_them() {
        let request = Request::parse(
            "POST api.example.com/v1/x?k=1",
            &["X-Api-Key:  k 1 ".into()],
        )
        .expect("good");
        assert_eq!(request.method, Method::POST);
        assert_eq!(request.uri, "/v1/x?k=1");
        assert_eq!(request.headers["host"], "api.example.com");
        assert_eq!(request.headers["x-api-key"], "k 1");
        let request = Request::parse("https://a.example/", &[]).expect("good");
        assert!(request.tls && request.method == Method::GET && request.uri == "/");
        let request = Request::parse("GET /x", &["Host: other".into()]).expect("good");
        assert_eq!(request.headers["host"], "other");
    }

    #[test]
    fn request_line_invalid_names_the_reason() {
        for bad in ["", "GET", "GET host", "G(T /x", "GET /a b"] {
            assert!(Request::parse(bad, &[]).is_err(), "{bad}");
        }
        for bad in ["no colon", "na me: x", "x: a\nb"] {
            assert!(Request::parse("GET /", &[bad.into()]).is_err(), "{bad}");
        }
    }
}
