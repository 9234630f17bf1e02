<?php
// A context of PHP: reads orders on descriptor 3, runs what they say, answers on descriptor 4.
//
// Started in the context's own folder. Source is evaluated in the global scope, so everything of ours is kept in one
// class. The protocol is in docs/functions-protocol.md.

class Retry extends Exception
{
    public function __construct(string $message = 'the function asked to be run again', public ?float $after = null)
    {
        parent::__construct($message, 100);
    }
}

class Fail extends Exception
{
    public function __construct(string $message = 'the function failed', int $code = 400)
    {
        parent::__construct($message, $code);
    }
}

final class WindlassContext
{
    public static array $loaded = [];
    public static array $handler = [];
    public static ?Throwable $trouble = null; // why no job of this batch can be run
    public static bool $broken = false;
    public static string $mark = '';
    public static string $source = '';
    private static $answers;

    public static function load(string $number, string $order): void
    {
        $order = array_map(self::untagged(...), json_decode($order, true, 512, JSON_THROW_ON_ERROR));
        self::$handler = $order + ['number' => $number, 'fault' => null];
        self::$mark = "\x1e" . self::$handler['mark'] . "\n";
    }

    /** Source as `eval` takes it: a file of PHP begins with a tag. */
    private static function untagged(string $source): string
    {
        return preg_replace('/\A\s*<\?php\b/i', '', $source);
    }

    /** What a handler's `run` is called: it need not be the first in this process. */
    public static function body(): string
    {
        self::$handler['run'] = 'run';
        if (!function_exists('run')) {
            return self::$handler['body'];
        }
        self::$handler['run'] = 'run_' . self::$handler['number'];
        return self::renamed(self::$handler['body'], self::$handler['run']);
    }

    private static function renamed(string $source, string $name): string
    {
        [$text, $depth, $after] = ['', 0, ''];
        foreach (PhpToken::tokenize("<?php $source") as $token) {
            $depth += ['{' => 1, '}' => -1][$token->text] ?? 0;
            $text .= $depth === 0 && $after === 'function' && $token->text === 'run' ? $name : $token->text;
            $after = $token->isIgnorable() ? $after : strtolower($token->text);
        }
        return substr($text, strlen('<?php '));
    }

    public static function keep(?Throwable $fault): void
    {
        if ($fault === null && !function_exists(self::$handler['run'])) {
            $fault = new TypeError('its body defines no run($payload)');
        }
        self::$broken = self::$broken || $fault !== null;
        self::$loaded[self::$handler['number']] = ['fault' => $fault] + self::$handler;
    }

    public static function run(string $number, string $kind, string $data): void
    {
        try {
            if (self::$trouble !== null) {
                throw self::$trouble;
            }
            $answer = self::said(200, (self::$handler['run'])(self::read($kind, $data)));
        } catch (Throwable $fault) {
            $answer = self::told($fault);
        }
        self::separate();
        self::send("done $number $answer\n");
    }

    /** What is printed from here on is the next job's. */
    public static function separate(): void
    {
        while (ob_get_level()) {
            ob_end_flush();
        }
        @fwrite(STDOUT, self::$mark);
        @fwrite(STDERR, self::$mark);
    }

    public static function send(string $text): void
    {
        self::$answers ??= fopen('php://fd/4', 'w');
        for ($at = 0; $at < strlen($text); $at += $wrote) {
            $wrote = fwrite(self::$answers, substr($text, $at));
            if (!$wrote) {
                exit(1);
            }
        }
        fflush(self::$answers);
    }

    private static function read(string $kind, string $data): mixed
    {
        if ($kind === 'json') {
            try {
                return json_decode($data, true, 512, JSON_THROW_ON_ERROR);
            } catch (JsonException $fault) {
                throw new Fail('its payload is no JSON: ' . $fault->getMessage());
            }
        }
        return $kind === 'text' ? $data : base64_decode($data);
    }

    private static function said(int $code, mixed $value): string
    {
        if (is_string($value) && !preg_match('//u', $value)) {
            return "$code base64 " . base64_encode($value);
        }
        $flags = JSON_THROW_ON_ERROR | JSON_UNESCAPED_UNICODE | JSON_UNESCAPED_SLASHES | JSON_PRESERVE_ZERO_FRACTION;
        return "$code json " . json_encode($value, $flags);
    }

    private static function told(Throwable $fault): string
    {
        $code = $fault->getCode();
        $after = is_numeric($fault->after ?? null) ? (float) $fault->after : NAN;
        $known = is_int($code) && (($code >= 100 && $code < 200) || ($code >= 400 && $code < 600));
        $error = [
            'type' => get_class($fault),
            'message' => $fault->getMessage(),
            'traceback' => self::trace($fault),
            'after' => is_finite($after) ? $after : null,
        ];
        return ($known ? $code : 500) . ' error ' . json_encode($error, JSON_INVALID_UTF8_SUBSTITUTE);
    }

    /** Without the lines that are of this file's own code. */
    private static function trace(Throwable $fault): string
    {
        $place = fn($text) => preg_replace("/[^ ]+\\(\\d+\\) : eval\\(\\)'d code/", 'source', $text);
        $lines = array_map($place, explode("\n", $fault->getTraceAsString()));
        $theirs = array_filter($lines, fn($line) => !preg_match('/WindlassContext|{main}/', $line) && !str_contains($line, __FILE__));
        $where = $place($fault->getFile()) . ':' . $fault->getLine();
        return implode("\n", [get_class($fault) . ': ' . $fault->getMessage(), "at $where", ...$theirs]);
    }
}

foreach ((function () {
    $orders = fopen('php://fd/3', 'r');
    while (($line = fgets($orders)) !== false) {
        yield substr($line, 0, -1);
    }
})() as WindlassContext::$source) {
    switch (strtok(WindlassContext::$source, ' ')) {
        case 'job':
            WindlassContext::run(...array_slice(explode(' ', WindlassContext::$source, 4), 1));
            break;
        case 'load':
            WindlassContext::load(...array_slice(explode(' ', WindlassContext::$source, 3), 1));
            try {
                eval(WindlassContext::$handler['before'] ?? '');
                eval(WindlassContext::body());
                WindlassContext::keep(null);
            } catch (Throwable $windlassFault) {
                WindlassContext::keep($windlassFault);
            }
            break;
        case 'batch':
            WindlassContext::$handler = WindlassContext::$loaded[substr(WindlassContext::$source, 6)];
            WindlassContext::$trouble = WindlassContext::$handler['fault'];
            if (WindlassContext::$trouble === null) {
                try {
                    eval(WindlassContext::$handler['beforeEach'] ?? '');
                } catch (Throwable $windlassFault) {
                    WindlassContext::$trouble = $windlassFault;
                }
            }
            break;
        case 'end':
            if (WindlassContext::$trouble === null) {
                try {
                    eval(WindlassContext::$handler['afterEach'] ?? '');
                } catch (Throwable $windlassFault) {
                    WindlassContext::$broken = true;
                    fwrite(STDERR, "$windlassFault\n");
                }
            }
            WindlassContext::separate();
            WindlassContext::send(WindlassContext::$broken ? "end broken\n" : "end\n");
    }
}
