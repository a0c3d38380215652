print('{"valid": true, "score": 1.0}\n')
