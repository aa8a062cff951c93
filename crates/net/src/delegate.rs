//! An enum of streams as a stream: each call goes to the stream of the variant.

/// Implements `AsyncRead` and `AsyncWrite` for an enum whose variants each have one stream.
#[macro_export]
macro_rules! delegate_io {
    ($streams:ident: $($variant:ident),+) => {
        impl ::tokio::io::AsyncRead for $streams {
            fn poll_read(
                self: ::std::pin::Pin<&mut Self>,
                cx: &mut ::std::task::Context<'_>,
                buf: &mut ::tokio::io::ReadBuf<'_>,
            ) -> ::std::task::Poll<::std::io::Result<()>> {
                match self.get_mut() {
                    $(Self::$variant(stream) => ::std::pin::Pin::new(stream).poll_read(cx, buf),)+
                }
            }
        }

        impl ::tokio::io::AsyncWrite for $streams {
            fn poll_write(
                self: ::std::pin::Pin<&mut Self>,
                cx: &mut ::std::task::Context<'_>,
                bytes: &[u8],
            ) -> ::std::task::Poll<::std::io::Result<usize>> {
                match self.get_mut() {
                    $(Self::$variant(stream) => ::std::pin::Pin::new(stream).poll_write(cx, bytes),)+
                }
            }

            fn poll_write_vectored(
                self: ::std::pin::Pin<&mut Self>,
                cx: &mut ::std::task::Context<'_>,
                slices: &[::std::io::IoSlice<'_>],
            ) -> ::std::task::Poll<::std::io::Result<usize>> {
                match self.get_mut() {
                    $(Self::$variant(stream) => {
                        ::std::pin::Pin::new(stream).poll_write_vectored(cx, slices)
                    })+
                }
            }

            fn is_write_vectored(&self) -> bool {
                match self {
                    $(Self::$variant(stream) => ::tokio::io::AsyncWrite::is_write_vectored(stream),)+
                }
            }

            fn poll_flush(
                self: ::std::pin::Pin<&mut Self>,
                cx: &mut ::std::task::Context<'_>,
            ) -> ::std::task::Poll<::std::io::Result<()>> {
                match self.get_mut() {
                    $(Self::$variant(stream) => ::std::pin::Pin::new(stream).poll_flush(cx),)+
                }
            }

            fn poll_shutdown(
                self: ::std::pin::Pin<&mut Self>,
                cx: &mut ::std::task::Context<'_>,
            ) -> ::std::task::Poll<::std::io::Result<()>> {
                match self.get_mut() {
                    $(Self::$variant(stream) => ::std::pin::Pin::new(stream).poll_shutdown(cx),)+
                }
            }
        }
    };
}
