        level = CASE WHEN kind IS NULL THEN want_brim
            -- A refusal leaves the bucket as it was: it may be drawn from at another rate next.
            WHEN level - price * taken + LEAST(GREATEST(moment - at, 0), want_fill) * want_n < want_need
            THEN level - price * taken
            ELSE LEAST(want_brim, level - price * taken + LEAST(GREATEST(moment - at, 0), want_fill) * want_n) END,
        taken = CASE WHEN kind IS NULL THEN LEAST(want_count, want_fresh)
            WHEN kind = 1 AND a = want_n AND b = want_p AND c = want_brim AND level IS NOT NULL
                AND at <= moment + 1000000
            THEN GREATEST(0, LEAST(want_count, (level - want_need + want_price) DIV want_price))
            ELSE -1 END,
        at = CASE WHEN kind IS NULL THEN moment WHEN taken = 0 THEN at ELSE GREATEST(at, moment) END,
        price = want_price, expires = GREATEST(expires, moment + want_lasts), kind = 1, print = mark,
        a = want_n, b = want_p, c = want_brim
