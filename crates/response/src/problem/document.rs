//! A problem as a document (RFC 9457) and as a response.

use bytes::Bytes;
use http::{HeaderValue, Method, Response, StatusCode, header};

use super::Problem;

impl Problem {
    /// Writes the members of the document that are the same for every request, without the closing
    /// brace. They contain nothing to escape.
    pub fn write_members(&self, out: &mut String) {
        self.write_head(out);
        out.push_str(self.detail);
        out.push('"');
    }

    pub(crate) fn write_head(&self, out: &mut String) {
        for piece in [
            "{\"type\":\"",
            self.kind,
            "\",\"title\":\"",
            self.title,
            "\",\"status\":",
            self.status.as_str(),
            ",\"detail\":\"",
        ] {
            out.push_str(piece);
        }
    }

    pub fn document(&self) -> String {
        let mut document = String::with_capacity(256);
        self.write_members(&mut document);
        document.push_str(END);
        document
    }

    pub fn response<B: From<Bytes>>(&self) -> Response<B> {
        let mut response = Response::new(B::from(self.document().into()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, PROBLEM_JSON);
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }

    /// The response to a request with this method: to HEAD it has no body, but the body's length.
    pub fn response_to<B: From<Bytes>>(&self, method: &Method) -> Response<B> {
        if *method != Method::HEAD {
            return self.response();
        }
        let (mut head, document) = self.response::<Bytes>().into_parts();
        let length = HeaderValue::from(document.len());
        head.headers.insert(header::CONTENT_LENGTH, length);
        Response::from_parts(head, B::from(Bytes::new()))
    }

    /// The bytes of this response over HTTP/1, after which the connection closes.
    pub fn last_response(&self) -> Vec<u8> {
        let document = self.document();
        let retry_after = match self.status {
            StatusCode::SERVICE_UNAVAILABLE => "retry-after: 1\r\n",
            _ => "",
        };
        format!(
            "HTTP/1.1 {} {}\r\ncontent-type: application/problem+json\r\ncache-control: no-store\r\n{retry_after}\
             connection: close\r\ncontent-length: {}\r\n\r\n{document}",
            self.status.as_str(),
            self.status.canonical_reason().unwrap_or_default(),
            document.len()
        )
        .into_bytes()
    }
}

pub const END: &str = "}\n";
pub const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problem_last_response_has_the_length_it_claims() {
        for problem in [
            Problem::NOT_HTTP,
            Problem::TOO_MANY_CONNECTIONS,
            Problem::HEAD_TIMEOUT,
        ] {
            let response = String::from_utf8(problem.last_response()).expect("ASCII");
            let (head, body) = response.split_once("\r\n\r\n").expect("a head and a body");
            let length = format!("content-length: {}", body.len());
            assert!(head.contains(&length), "{head}: {}", body.len());
            let json: serde_json::Value = serde_json::from_str(body).expect("JSON");
            assert_eq!(json["status"], problem.status.as_u16());
            assert_eq!(json["detail"], problem.detail);
        }
    }
}
