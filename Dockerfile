# A small image without a shell: the gateway, the libraries it is linked with, certificates and time zones.
#
#   docker build -t tollgate .                       trained on the proxy's own load (takes three times as long)
#   docker build -t tollgate --build-arg PGO=0 .     the same without the training
#   docker run --stop-timeout 45 -p 8080:8080 -v ./gateway.toml:/etc/tollgate/gateway.toml:ro -v tollgate:/var/lib/tollgate tollgate
#
# BUILD_IMAGE may be any image with a Rust toolchain on Debian.
ARG BUILD_IMAGE=rust:1.95-bookworm

FROM ${BUILD_IMAGE} AS build
ARG PGO=1
WORKDIR /src
RUN apt-get update -q \
 && apt-get install -qy --no-install-recommends gcc libc6-dev make ca-certificates tzdata \
 && if [ "$PGO" = 1 ]; then \
      apt-get install -qy --no-install-recommends python3 nginx-light wrk nghttp2-client bolt-22 && rustup component add llvm-tools; \
    fi \
 && rm -rf /var/lib/apt/lists/*
COPY . .
RUN if [ "$PGO" = 1 ]; then \
      benches/proxy/build-pgo && cp target/pgo/tollgate /tollgate; \
    else \
      cargo build --profile dist --locked && cp target/dist/tollgate /tollgate; \
    fi
# The image's whole tree. What the program is linked with is what `ldd` says, the loader included.
RUN set -eu; root=/image; \
    install -D -m 755 /tollgate "$root/usr/bin/tollgate"; \
    for library in $(ldd /tollgate | grep -o '/[^ ]*'); do install -D -m 755 "$library" "$root$library"; done; \
    install -D -m 644 /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"; \
    mkdir -p "$root/usr/share"; cp -r /usr/share/zoneinfo "$root/usr/share/zoneinfo"; \
    install -D -m 644 gateway.toml "$root/etc/tollgate/gateway.toml"; \
    echo 'tollgate:x:65532:65532::/var/lib/tollgate:/sbin/nologin' > "$root/etc/passwd"; \
    echo 'tollgate:x:65532:' > "$root/etc/group"; \
    install -d -m 750 -o 65532 -g 65532 "$root/var/lib/tollgate"

FROM scratch
COPY --from=build /image/ /
LABEL org.opencontainers.image.title="tollgate" \
      org.opencontainers.image.description="A rate-limiting reverse-proxy gateway" \
      org.opencontainers.image.licenses="MIT OR Apache-2.0"
ENV TOLLGATE_CONFIG=/etc/tollgate/gateway.toml
# Local buckets over a restart are kept here: `docker restart` keeps them, a new container wants a volume of its own.
ENV STATE_DIRECTORY=/var/lib/tollgate
USER 65532:65532
WORKDIR /var/lib/tollgate
EXPOSE 8080
STOPSIGNAL SIGTERM
# The binary probes itself: there is no shell and no curl here. Whether the process lives, not whether it is ready: what acts
# on this restarts it, and that mends neither a store nor an upstream.
HEALTHCHECK --interval=10s --timeout=3s --start-period=5s --retries=3 CMD ["/usr/bin/tollgate", "health", "--live"]
ENTRYPOINT ["/usr/bin/tollgate"]
CMD ["run"]
